"""`slime-swe`: one console script; each sub-command is a sibling module in `launch/commands`."""

from __future__ import annotations

import argparse
import errno
import os
import signal
import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from importlib import import_module
from typing import Any, NoReturn, TextIO

from slime_swe import __version__
from slime_swe.dotted import search_current_folder
from slime_swe.errors import InfrastructureError, UserError
from slime_swe.launch.ray.processes import interrupting
from slime_swe.saving import TRY_AGAIN, StoppedToResume

_NAMES = (
    "train",
    "watch",
    "evaluate",
    "recipes",
    "tasks",
    "validate",
    "make-tasks",
    "describe",
    "integrity",
    "agent",
    "episodes",
    "export",
    "sft",
    "report",
    "compare",
    "replay",
    "plan",
    "doctor",
    "probe",
    "rehearse",
)
COMMANDS = {name: f"slime_swe.launch.commands.{name.replace('-', '_')}" for name in _NAMES}
SHORT = {"eval": "evaluate"}
USER_ERROR = 2  # as argparse has it
FAILURE = 1


def main(argv: Sequence[str] | None = None) -> NoReturn:
    """Run one sub-command and exit: 0 done, 1 it failed, 2 it was asked for wrongly, 75 it stopped to be
    resumed, 128 + N ended by signal N."""
    _open_closed_streams()
    search_current_folder()  # so that a user's own recipe, reward or task module is found by its dotted path
    try:
        sys.exit(run(sys.argv[1:] if argv is None else argv))
    finally:
        for stream in (sys.stdout, sys.stderr):
            _write_or_discard(stream)


def run(argv: Sequence[str]) -> int:
    """Run one sub-command and return its exit code; what users did wrong is said in one paragraph, without a traceback.

    SIGTERM and SIGHUP stop it as Ctrl-C does.
    """
    with interrupting() as signals:
        try:
            return _run(argv)
        except KeyboardInterrupt:
            number = signals[0] if signals else signal.SIGINT
            return _complain(f"interrupted by {signal.Signals(number).name}", 128 + number)


def _run(argv: Sequence[str]) -> int:
    options = parse(argv)
    try:
        code = int(_module(options.command).run(options))
        sys.stdout.flush()  # a reader that has gone is noticed here, not at the interpreter's exit
        return code
    except BrokenPipeError:  # `slime-swe episodes RUN | head`
        return 0
    except StoppedToResume as stopped:
        return _complain(str(stopped), TRY_AGAIN)
    except UserError as error:
        return _complain(str(error), USER_ERROR)
    except InfrastructureError as error:
        return _complain(str(error), FAILURE)
    except OSError as error:
        if error.filename is None:
            if error.errno not in (errno.ENOSPC, errno.EIO):  # a full disk, a closed terminal
                raise
            return _complain(f"can't write the output: {error.strerror}", FAILURE)
        return _complain(f"{error.filename}: {error.strerror}", FAILURE)


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Parse the options of one sub-command. Overrides (`key=value`) may stand before and after the flags."""
    meant = SHORT.get(argv[0], argv[0]) if argv else ""
    parser = build_parser([meant] if meant in COMMANDS else COMMANDS)
    options, rest = parser.parse_known_args(argv)
    wrong = [word for word in rest if word.startswith("-") or not hasattr(options, "overrides")]
    if wrong:
        parser.error(f"unrecognized arguments: {' '.join(wrong)}")
    if rest:
        options.overrides = [*options.overrides, *rest]
    return options


def build_parser(names: Iterable[str] = COMMANDS) -> argparse.ArgumentParser:
    """Build the parser of these sub-commands. It imports what each needs: `parse` makes the one that is meant."""
    parser = argparse.ArgumentParser(prog="slime-swe", description="Train coding agents with reinforcement learning.")
    parser.add_argument("--version", action="version", version=f"slime-swe {__version__}")
    subparsers = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name in names:
        module = _module(name)
        help_text, _, details = (module.__doc__ or "").partition("\n")
        aliases = [short for short, meant in SHORT.items() if meant == name]
        subparser = subparsers.add_parser(name, aliases=aliases, help=help_text, description=f"{help_text}{details}",
                                          formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
        subparser.add_argument("--json", action="store_true", help="print one JSON document on standard output")
        module.add_arguments(subparser)
    return parser


def _open_closed_streams() -> None:
    """Have a standard stream that the shell has closed (`>&-`) discard, so that no file of ours gets its number."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            descriptor = os.open(os.devnull, os.O_RDWR)
            if descriptor != number:
                os.dup2(descriptor, number)
                os.close(descriptor)
            setattr(sys, name, open(number, "r" if name == "stdin" else "w", closefd=False))  # noqa: SIM115


def _write_or_discard(stream: TextIO) -> None:
    """Flush a stream, or discard what is left in its buffer where nobody reads it any more. The interpreter would try
    to write that once more at its exit, and end with 120 in place of the command's own code."""
    try:
        stream.flush()
    except OSError:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)


def _module(command: str) -> Any:
    """Import a sub-command's module, only now, so that Ctrl-C during the imports ends like any other."""
    return import_module(COMMANDS[SHORT.get(command, command)])


def _complain(message: str, code: int) -> int:
    with suppress(OSError):  # a terminal that was closed
        print(f"slime-swe: {message}", file=sys.stderr, flush=True)
    return code


if __name__ == "__main__":
    main()
