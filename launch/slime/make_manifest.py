"""Write `flags.json`: every flag that SLiME's own parsers know, and the commits that they were read from.

    python -m slime_swe.launch.slime.make_manifest SLIME_DIR MEGATRON_DIR > flags.json && mv flags.json launch/slime/

It builds the real parsers, so it needs an interpreter in which SLiME imports: the training image, or the environment
that `engine=slime_cpu` makes, where that engine's stand-ins for a GPU are put in place first.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.metadata
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock


def main(slime: Path, megatron: Path) -> None:
    git = ["git", "rev-parse", "HEAD"]
    commits = {
        name: subprocess.run(git, cwd=checkout, check=True, capture_output=True, text=True).stdout.strip()
        for name, checkout in (("slime", slime), ("megatron", megatron))
    }
    sys.path[:0] = [str(slime), str(megatron)]
    if not importlib.import_module("torch").cuda.is_available():
        importlib.import_module("slime_swe.launch.slime_cpu.shims").install()
    flags: dict[str, Any] = {}
    for owner, parser in parsers():
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
    print(f'{{\n  "made_from": {json.dumps(made_from)},\n  "flags": {{\n{lines}\n  }}\n}}')


def parsers() -> Iterator[tuple[str, argparse.ArgumentParser]]:
    """Whose flags, and the parser. `slime.utils.arguments.parse_args` reads the command line with these three."""
    arguments = importlib.import_module("slime.utils.arguments")
    yield "slime", used_by(arguments._pre_parse_mode)
    yield "sglang", used_by(importlib.import_module("slime.backends.sglang_utils.arguments").sglang_parse_args)
    parser = argparse.ArgumentParser(allow_abbrev=False)
    importlib.import_module("megatron.training.arguments").add_megatron_arguments(parser)
    theirs = set(parser._option_string_actions)
    arguments.get_slime_extra_args_provider()(parser)
    yield "slime", only(parser, lambda option: option not in theirs)
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
        "choices": None if action.choices is None else [plain(choice) for choice in action.choices],
        "const": plain(action.const),
        "default": plain(action.default),
        "required": action.required or None,
    }
    return {key: value for key, value in found.items() if value is not None}


def plain(value: Any) -> Any:
    """The value where JSON can hold it; an enumeration's member is the text that names it."""
    if isinstance(value, list | tuple):
        return [plain(inner) for inner in value]
    if isinstance(value, str | int | float | bool | dict) or value is None:
        return value
    return str(getattr(value, "name", value))


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(Path(sys.argv[1]).resolve(), Path(sys.argv[2]).resolve())
