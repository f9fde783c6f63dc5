"""Flags of SLiME or its fork, as `make_manifest.py` read them; `Job`, the command line that a recipe makes of them."""

from __future__ import annotations

import argparse
import difflib
import json
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from importlib.resources import files
from itertools import pairwise
from pathlib import Path
from shlex import quote
from typing import Any, NoReturn

import msgspec

from slime_swe.errors import UserError
from slime_swe.files import replace_file

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
        """The value of the attribute where the flag stands alone; None where it takes one."""
        return not name.startswith("--no-") if self.action == "BooleanOptionalAction" else self.const

    @property
    def switch(self) -> bool:
        return self.action in (*_SWITCHES, "BooleanOptionalAction")


class _Parser(argparse.ArgumentParser):
    title = ""

    def error(self, message: str) -> NoReturn:
        raise UserError(f"{self.title} does not take this: {message}")


class Manifest(msgspec.Struct, frozen=True, dict=True):
    """made_from: commits of the train loop and of Megatron, versions of SGLang and its router. flags: by name, as
    `--lr`. title: of the train loop, for people.
    """

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
        """A command line that sets every attribute as given. None leaves out a flag that has no default.

        Raises `UserError` where there is no flag for an attribute, or none that gives it this value.
        """
        argv = [word for dest, value in attributes.items() for word in self._argv_of(dest, value)]
        self.check(argv)
        return tuple(argv)

    def of_dest(self, dest: str) -> dict[str, Flag]:
        """The flags that set an attribute. Raises `UserError` with the nearest names where there is none."""
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
    """Each flag with the argv up to the next."""
    starts = [index for index, argument in enumerate(argv) if argument.startswith("--")]
    for start, end in pairwise([*starts, len(argv)]):
        yield argv[start], list(argv[start + 1 : end])


def load_manifest(package: str, title: str, of_the_image: Mapping[str, tuple[str, ...]]) -> Manifest:
    """The one that comes with this package for a train loop, with further choices of some flags."""
    read = msgspec.json.decode((files(f"slime_swe.launch.{package}") / "flags.json").read_bytes(), type=Manifest)
    more = {name: with_choices(read.flags[name], choices) for name, choices in of_the_image.items()}
    return msgspec.structs.replace(read, flags={**read.flags, **more}, title=title)


def with_choices(flag: Flag, choices: tuple[str, ...]) -> Flag:
    return msgspec.structs.replace(flag, choices=tuple(dict.fromkeys((*(flag.choices or ()), *choices))))


def values(value: Any) -> list[str]:
    """The words that follow a flag."""
    if isinstance(value, list | tuple):
        return [text for inner in value for text in values(inner)]
    return [json.dumps(value) if isinstance(value, dict) else str(value)]


# A job as text: grouped, for people to read, and as a shell script, to be run by hand.
SCRIPT = """#!/usr/bin/env bash
# Flags as {} takes them. On a running Ray cluster: export RAY_ADDRESS, and start Ray on every
# node with the variables below.
set -euo pipefail
"""


def readable(job: Job) -> str:
    """Flags in their groups, one a line, then environment and files."""
    groups: dict[str, list[str]] = {heading: lines(argv) for heading, argv in job.flags.items()}
    groups["environment"] = [f"{name}={value}" for name, value in job.environment.items()]
    groups["files"] = []
    for path, content in job.files.items():
        groups["files"] += [f"{path}:", *(f"  {line}" for line in content.splitlines())]
    shown = (f"{heading}\n" + "".join(f"  {line}\n" for line in body) for heading, body in groups.items() if body)
    return "\n".join([" ".join(job.program), f"in {job.directory}, as {job.manifest.source} takes it\n", *shown])


def document(job: Job) -> dict[str, Any]:
    """The same as plain JSON types."""
    return {
        "argv": job.argv,
        "flags": {heading: list(argv) for heading, argv in job.flags.items()},
        "environment": dict(job.environment),
        "files": {str(path): content for path, content in job.files.items()},
        "directory": str(job.directory),
        "made_from": dict(job.manifest.made_from),
    }


def lines(argv: Sequence[str]) -> list[str]:
    """Each flag with its values, quoted for a shell."""
    return [" ".join([name, *map(quote, values)]) for name, values in split(argv)]


def script(job: Job) -> str:
    """A bash script that does what the launcher does, without Ray Jobs.

    It starts a Ray of its own on the machine that it runs on. Where RAY_ADDRESS names a running cluster it uses that
    one, whose nodes must have been started with the same environment.
    """
    said = [
        SCRIPT.format(job.manifest.source),
        *(f"export {name}={quote(value)}" for name, value in job.environment.items()),
    ]
    folders = dict.fromkeys([job.directory, *(path.parent for path in job.files)])
    said += ["", shlex.join(["mkdir", "-p", *map(str, folders)]), shlex.join(["cd", str(job.directory)])]
    said += [f"printf %s {quote(content)} > {quote(str(path))}" for path, content in job.files.items()]
    said += ["", "flags=("]
    for heading, argv in job.flags.items():
        said += [f"  # {heading}", *(f"  {line}" for line in lines(argv))]
    said += [")", f'exec {shlex.join(job.program)} "${{flags[@]}}"', ""]
    return "\n".join(said)


# `Job`: one command that trains under SLiME or its fork, with everything that it needs beside it.
@dataclass(frozen=True)
class Job:
    """What a launcher starts, as it is: every path is absolute, every value is text.

    program: the interpreter, the module of ours that runs the entry script, if any, and the script.
    flags: heading for people -> that group of flags with their values.
    environment: variables that the command and every Ray worker of it need, added to what is there.
    files: path -> content; all of them lie in `directory` and must be there before the command starts.
    directory: the run's folder, which the command is started in, so that strays of any library land there.
    manifest: the flags that there are.
    """

    program: tuple[str, ...]
    flags: Mapping[str, tuple[str, ...]]
    environment: Mapping[str, str]
    files: Mapping[Path, str]
    directory: Path
    manifest: Manifest = field(repr=False, compare=False)

    @property
    def argv(self) -> list[str]:
        """The whole command."""
        return [*self.program, *self.words]

    @property
    def words(self) -> list[str]:
        """What the entry script is given: all flags with their values."""
        return [argument for group in self.flags.values() for argument in group]

    def write_files(self) -> None:
        """Write `files`, each whole or not at all, over what earlier starts of the run left."""
        for path, content in self.files.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            replace_file(path, content.encode())
