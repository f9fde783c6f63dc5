"""Write `flags.json`: every flag that the parsers of SLiME or its fork know, and the commits that they were read from.

    python -m slime_swe.launch.slime.make_manifest slime SLIME_DIR MEGATRON_DIR > slime.json
    python -m slime_swe.launch.slime.make_manifest miles MILES_DIR MEGATRON_DIR > miles.json

They are then moved to `launch/slime/flags.json` and `launch/miles/flags.json`.

It builds the real parsers, so it needs an interpreter in which the package imports: the training image, or the
environment that `engine=slime_cpu` makes (for miles with `polars` beside it, which its parser imports), where that
engine's stand-ins for a GPU are put in place first.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.metadata
import json
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any
from unittest import mock


def make(package: str, loop: Path, megatron: Path) -> str:
    """The file's text."""
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
    """`slime.utils.arguments.parse_args` reads the command line with these three."""
    arguments = importlib.import_module("slime.utils.arguments")
    yield "slime", used_by(arguments._pre_parse_mode)
    yield "sglang", used_by(importlib.import_module("slime.backends.sglang_utils.arguments").sglang_parse_args)
    yield from with_megatron("slime", arguments.get_slime_extra_args_provider())


def of_miles() -> Parsers:
    """Megatron's parser, to which `miles.utils.arguments.parse_args` adds its own flags and SGLang's."""
    servers = argparse.ArgumentParser(allow_abbrev=False)
    importlib.import_module("miles.backends.sglang_utils.arguments").add_sglang_arguments(servers)
    yield "sglang", servers
    yield from with_megatron("miles", importlib.import_module("miles.utils.arguments").get_miles_extra_args_provider())


PARSERS: dict[str, Callable[[], Parsers]] = {"slime": of_slime, "miles": of_miles}


def with_megatron(package: str, add: Callable[[argparse.ArgumentParser], object]) -> Parsers:
    """Megatron's own parser, and apart from it what `add` adds."""
    parser = argparse.ArgumentParser(allow_abbrev=False)
    importlib.import_module("megatron.training.arguments").add_megatron_arguments(parser)
    theirs = set(parser._option_string_actions)
    with mock.patch.object(sys, "argv", sys.argv[:1]):  # miles looks for paths of plug-ins among the words there
        add(parser)
    yield package, only(parser, lambda option: option not in theirs)
    yield "megatron", parser


def used_by(parse: Callable[[], Any]) -> argparse.ArgumentParser:
    """The parser that a function builds and then reads the command line with: the last one that it uses."""
    seen: list[argparse.ArgumentParser] = []

    def parse_known_args(parser: argparse.ArgumentParser, *given: Any) -> tuple[argparse.Namespace, list[str]]:
        seen.append(parser)
        return original(parser, [])

    original = argparse.ArgumentParser.parse_known_args
    with mock.patch.object(argparse.ArgumentParser, "parse_known_args", parse_known_args):
        parse()
    return seen[-1]


def only(parser: argparse.ArgumentParser, wanted: Callable[[str], bool]) -> argparse.ArgumentParser:
    """The part of a parser whose flags are wanted."""
    part = argparse.ArgumentParser(add_help=False)
    part._actions = [action for action in parser._actions if any(map(wanted, action.option_strings))]
    return part


def describe(action: argparse.Action) -> dict[str, Any]:
    """One flag, as far as a command line is concerned; what is None or the usual is left out.

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
    """As they are given; those of a set, which have no order that stays, in that of their text."""
    return [plain(choice) for choice in (sorted(choices, key=str) if isinstance(choices, set) else choices)]


def plain(value: Any) -> Any:
    """The value where JSON can hold it; an enumeration's member is the text that names it."""
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
