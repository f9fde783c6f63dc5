"""The flags that the parsers of SLiME or its fork know: `Manifest` reads `flags.json`, which this file writes.

    python -m slime_swe.launch.slime.manifest slime SLIME_DIR MEGATRON_DIR > slime.json
    python -m slime_swe.launch.slime.manifest miles MILES_DIR MEGATRON_DIR > miles.json

They are then moved to `launch/slime/flags.json` and `launch/miles/flags.json`.

Writing builds the real parsers, so it needs an interpreter in which the package imports: the training image, or the
environment that `engine=slime_cpu` makes (for miles with `polars` beside it, which its parser imports), where that
engine's stand-ins for a GPU are put in place first.
"""

from __future__ import annotations

import argparse
import difflib
import importlib
import importlib.metadata
import json
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import redirect_stdout
from functools import cached_property
from importlib.resources import files
from itertools import pairwise
from pathlib import Path
from typing import Any, NoReturn
from unittest import mock

import msgspec

from slime_swe.errors import UserError

Attributes = dict[str, Any]  # of `args`, as its parser leaves it: name -> value
_SWITCHES = ("store_true", "store_false", "store_const", "append_const", "count", "help", "version")
_TYPES: dict[str, Callable[[str], Any]] = {"int": int, "float": float, "json": json.loads}


class Flag(msgspec.Struct, frozen=True):
    """One flag.

    owner: whose parser has it, `slime` or `miles`, `megatron` or `sglang`.
    dest: the attribute of `args` that it sets.
    action: argparse's, `store`, `store_true` ..., or the name of a class of theirs.
    type: `int`, `float`, `str`, `json`, or the name of a function of theirs, which is not checked here.
    nargs: argparse's: how many values; None is one, or none for an action that takes none.
    """

    owner: str
    dest: str
    action: str = "store"
    type: str | None = None
    nargs: int | str | None = None
    choices: tuple[Any, ...] | None = None
    const: Any = None
    default: Any = None
    required: bool = False

    def stands_for(self, name: str) -> Any:
        """Return the value of the attribute where the flag stands alone; None where it takes one."""
        return not name.startswith("--no-") if self.action == "BooleanOptionalAction" else self.const

    @property
    def switch(self) -> bool:
        return self.action in (*_SWITCHES, "BooleanOptionalAction")


class _Parser(argparse.ArgumentParser):
    title = ""

    def error(self, message: str) -> NoReturn:
        raise UserError(f"{self.title} does not take this: {message}")


class Manifest(msgspec.Struct, frozen=True, dict=True):
    """The flags of a train loop. made_from: commits of the train loop and of Megatron, versions of SGLang and its
    router. flags: by name, as `--lr`. title: of the train loop, for people."""

    made_from: Mapping[str, str]
    flags: Mapping[str, Flag]
    title: str = ""

    @property
    def source(self) -> str:
        """The train loop and its commit, in words."""
        return f"{self.title} {self.made_from[self.title.lower()][:9]}"

    def check(self, argv: Sequence[str]) -> None:
        """Raise `UserError` for what its own parsers would refuse of a command line, but for what it leaves out."""
        words = tuple(argv)
        if words not in self._accepted:  # parsing takes milliseconds, and a search for a cure asks a thousand times
            self._parser.parse_args(words)
            self._accepted.add(words)

    def to_argv(self, attributes: Mapping[str, Any]) -> tuple[str, ...]:
        """Write a command line that sets every attribute as given. None leaves out a flag that has no default.

        Raises `UserError` where there is no flag for an attribute, or none that gives it this value.
        """
        argv = [word for dest, value in attributes.items() for word in self._argv_of(dest, value)]
        self.check(argv)
        return tuple(argv)

    def of_dest(self, dest: str) -> dict[str, Flag]:
        """Return the flags that set an attribute. Raises `UserError` with the nearest names where there is none."""
        found = self._by_dest.get(dest)
        if found is None:
            nearest = difflib.get_close_matches("--" + dest.replace("_", "-"), self.flags, n=3, cutoff=0.6)
            hint = f"; did you mean {' or '.join(nearest)}?" if nearest else ""
            raise UserError(f"{self.source} has no flag that sets args.{dest}{hint}")
        return found

    def _argv_of(self, dest: str, value: Any) -> list[str]:
        flags = self.of_dest(dest)
        alone = {name: flag.stands_for(name) for name, flag in flags.items() if flag.switch}
        for name, stated in alone.items():
            if stated == value:
                return [name]
        default = next(iter(flags.values())).default
        if bool(value) == bool(default) if len(alone) == len(flags) else value is None and default is None:
            return []  # of a switch no default is as good as False
        takers = [name for name in flags if name not in alone]
        if not takers or value is None:
            raise UserError(f"no flag of {self.title} sets args.{dest} to {value!r}: {', '.join(flags)}")
        if isinstance(value, list | tuple) and flags[takers[0]].nargs is None and flags[takers[0]].action == "store":
            value = str(list(value)).replace(" ", "")  # as Megatron reads a list that is one word: --moe-layer-freq
        return [takers[0], *values(value)]

    def words_of(self, name: str, value: Any) -> list[str]:
        """Write a flag of `slime.flags` with its value. A switch that is false is left out, or is the other of `--x`
        and `--no-x` where there are two. Raises `UserError` where the flag takes no such value."""
        word, flag = f"--{name}", self.flags[f"--{name}"]
        if flag.switch:
            if not isinstance(value, bool):
                raise UserError("it is a switch, and takes true or false")
            opposite = f"--{name.removeprefix('no-')}" if name.startswith("no-") else f"--no-{name}"
            return [word] if value else [opposite] if flag.action == "BooleanOptionalAction" else []
        if value is None or isinstance(value, bool):
            raise UserError(f"it takes a value; ~slime.flags.{name} leaves the flag out")
        if flag.action == "append":
            return [part for each in (value if isinstance(value, list) else [value]) for part in (word, *values(each))]
        return [word, *values(value)]

    @cached_property
    def _accepted(self) -> set[tuple[str, ...]]:
        return set()

    @cached_property
    def _by_dest(self) -> dict[str, dict[str, Flag]]:
        found: dict[str, dict[str, Flag]] = {}
        for name, flag in self.flags.items():
            found.setdefault(flag.dest, {})[name] = flag
        return found

    @cached_property
    def _parser(self) -> argparse.ArgumentParser:
        parser = _Parser(add_help=False, allow_abbrev=False)
        parser.title = self.title
        for name, flag in self.flags.items():
            if flag.switch:
                parser.add_argument(name, dest=flag.dest, action="store_true")
            else:
                kind = _TYPES.get(flag.type or "", str)
                parser.add_argument(name, dest=flag.dest, type=kind, nargs=flag.nargs, choices=flag.choices)
        return parser


def split(argv: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
    """Yield each flag with the argv up to the next."""
    starts = [index for index, argument in enumerate(argv) if argument.startswith("--")]
    for start, end in pairwise([*starts, len(argv)]):
        yield argv[start], list(argv[start + 1 : end])


def load_manifest(package: str, title: str, of_the_image: Mapping[str, tuple[str, ...]]) -> Manifest:
    """Load the manifest that comes with this package for a train loop, with further choices of some flags."""
    read = msgspec.json.decode((files("slime_swe.launch") / package / "flags.json").read_bytes(), type=Manifest)
    more = {name: with_choices(read.flags[name], choices) for name, choices in of_the_image.items()}
    return msgspec.structs.replace(read, flags={**read.flags, **more}, title=title)


def with_choices(flag: Flag, choices: tuple[str, ...]) -> Flag:
    return msgspec.structs.replace(flag, choices=tuple(dict.fromkeys((*(flag.choices or ()), *choices))))


def values(value: Any) -> list[str]:
    """Return the words that follow a flag."""
    if isinstance(value, list | tuple):
        return [text for inner in value for text in values(inner)]
    return [json.dumps(value) if isinstance(value, dict) else str(value)]


def make(package: str, loop: Path, megatron: Path) -> str:
    """Return the text of a manifest's file."""
    git = ["git", "rev-parse", "HEAD"]
    commits = {
        name: subprocess.run(git, cwd=checkout, check=True, capture_output=True, text=True).stdout.strip()
        for name, checkout in ((package, loop), ("megatron", megatron))
    }
    sys.path[:0] = [str(loop), str(megatron)]
    if not importlib.import_module("torch").cuda.is_available():
        shims = importlib.import_module("slime_swe.launch.slime_cpu.shims")
        shims.install() if package == "slime" else shims.without_cuda()
    flags: dict[str, Any] = {}
    for owner, parser in PARSERS[package]():
        for action in parser._actions:
            for option in action.option_strings:
                if option.startswith("--"):
                    flags.setdefault(option, {"owner": owner, **describe(action)})
    made_from = {
        **commits,
        "sglang": importlib.metadata.version("sglang"),
        "sglang_router": importlib.metadata.version("sglang-router"),
    }
    # One flag a line, so that a new commit's changes can be read.
    lines = ",\n".join(f"    {json.dumps(flag)}: {json.dumps(flags[flag])}" for flag in sorted(flags))
    return f'{{\n  "made_from": {json.dumps(made_from)},\n  "flags": {{\n{lines}\n  }}\n}}'


Parsers = Iterator[tuple[str, argparse.ArgumentParser]]  # whose flags, and the parser


def of_slime() -> Parsers:
    """Yield the three parsers with which `slime.utils.arguments.parse_args` reads the command line."""
    arguments = importlib.import_module("slime.utils.arguments")
    yield "slime", used_by(arguments._pre_parse_mode)
    yield "sglang", used_by(importlib.import_module("slime.backends.sglang_utils.arguments").sglang_parse_args)
    yield from with_megatron("slime", arguments.get_slime_extra_args_provider())


def of_miles() -> Parsers:
    """Yield the parsers of SGLang's, miles' and Megatron's flags, which miles' `parse_args` has in one."""
    servers = argparse.ArgumentParser(allow_abbrev=False)
    importlib.import_module("miles.backends.sglang_utils.arguments").add_sglang_arguments(servers)
    yield "sglang", servers
    yield from with_megatron("miles", importlib.import_module("miles.utils.arguments").get_miles_extra_args_provider())


PARSERS: dict[str, Callable[[], Parsers]] = {"slime": of_slime, "miles": of_miles}


def with_megatron(package: str, add: Callable[[argparse.ArgumentParser], object]) -> Parsers:
    """Yield Megatron's own parser, and apart from it what `add` adds."""
    parser = argparse.ArgumentParser(allow_abbrev=False)
    importlib.import_module("megatron.training.arguments").add_megatron_arguments(parser)
    theirs = set(parser._option_string_actions)
    with mock.patch.object(sys, "argv", sys.argv[:1]):  # miles looks for paths of plug-ins among the words there
        add(parser)
    yield package, only(parser, lambda option: option not in theirs)
    yield "megatron", parser


def used_by(parse: Callable[[], Any]) -> argparse.ArgumentParser:
    """Return the parser that a function builds and then reads the command line with: the last one that it uses."""
    seen: list[argparse.ArgumentParser] = []

    def parse_known_args(parser: argparse.ArgumentParser, *given: Any) -> tuple[argparse.Namespace, list[str]]:
        seen.append(parser)
        return original(parser, [])

    original = argparse.ArgumentParser.parse_known_args
    with mock.patch.object(argparse.ArgumentParser, "parse_known_args", parse_known_args):
        parse()
    return seen[-1]


def only(parser: argparse.ArgumentParser, wanted: Callable[[str], bool]) -> argparse.ArgumentParser:
    """Return the part of a parser whose flags are wanted."""
    part = argparse.ArgumentParser(add_help=False)
    part._actions = [action for action in parser._actions if any(map(wanted, action.option_strings))]
    return part


def describe(action: argparse.Action) -> dict[str, Any]:
    """Describe one flag as far as a command line is concerned; what is None or the usual is left out.

    action: `store`, `store_true`, `append` ...; a class of SLiME's or SGLang's own goes by its class name. type: `int`,
    `float`, `str`, `json`; the name of any other function.
    """
    actions = {kind: name for name, kind in argparse.ArgumentParser()._registries["action"].items() if name is not None}
    kind = "json" if action.type is json.loads else getattr(action.type, "__name__", type(action.type).__name__)
    found = {
        "dest": action.dest,
        "action": actions.get(type(action), type(action).__name__),
        "type": None if action.type is None else kind,
        "nargs": action.nargs if action.nargs != 0 else None,
        "choices": None if action.choices is None else in_order(action.choices),
        "const": plain(action.const),
        "default": None if action.default == argparse.SUPPRESS else plain(action.default),
        "required": action.required or None,
    }
    return {key: value for key, value in found.items() if value is not None}


def in_order(choices: Iterable[Any]) -> list[Any]:
    """List choices as they are given; those of a set, which have no order that stays, in that of their text."""
    return [plain(choice) for choice in (sorted(choices, key=str) if isinstance(choices, set) else choices)]


def plain(value: Any) -> Any:
    """Return the value where JSON can hold it; of an enumeration's member the text that names it."""
    if isinstance(value, list | tuple):
        return [plain(inner) for inner in value]
    if isinstance(value, str | int | float | bool | dict) or value is None:
        return value
    return str(getattr(value, "name", value))


if __name__ == "__main__":
    if len(sys.argv) != 4 or sys.argv[1] not in PARSERS:
        sys.exit(__doc__)
    with redirect_stdout(sys.stderr):  # some of what they import prints
        manifest = make(sys.argv[1], Path(sys.argv[2]).resolve(), Path(sys.argv[3]).resolve())
    print(manifest)
