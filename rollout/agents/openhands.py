"""OpenHands: an agent in Python 3.12, which its layer brings: a copy of this machine's own CPython, so that nothing is
downloaded but what pip brings."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

from slime_swe.errors import UserError
from slime_swe.rollout.agents.cli import HOME, CliAgent, Command, Launch, folder_of, pip_install
from slime_swe.rollout.agents.toy_task import repair

PYTHON = "3.12"  # it takes no other

# OpenHands' own command. What it starts gets the image's library path.
_RUN = """\
import os
import sys

os.environ["LD_LIBRARY_PATH"] = os.environ.pop("IMAGE_LIBRARY_PATH")
sys.path.insert(0, "{folder}/lib")
from openhands_cli.entrypoint import main

main()
"""


class OpenHands(CliAgent):
    name = "openhands"
    version = "1.16.0"
    check_script = repair("terminal", security_risk="LOW")

    @classmethod
    def install(cls, folder: Path) -> None:
        pip_install(cls.name, folder, copy_python(PYTHON, folder / "python"))
        (folder / "run.py").write_text(_RUN.format(folder=folder_of(cls.name)), encoding="utf-8")

    @classmethod
    def start(cls, launch: Launch) -> Command:
        llm = {
            "model": f"openai/{launch.policy.model}",
            "base_url": f"{launch.url}/v1",
            "api_key": launch.key,
            "usage_id": "agent",
            "timeout": 86400,  # seconds; the proxy's client has a limit
            "num_retries": 2,
            "max_input_tokens": launch.policy.max_context,
            "max_output_tokens": launch.max_reply,
            "native_tool_calling": True,
            "input_cost_per_token": 0,
            "output_cost_per_token": 0,
        }
        agent = {"kind": "Agent", "llm": llm, "tools": [], "system_prompt_kwargs": {"cli_mode": True}}
        environment = {
            "OPENHANDS_SUPPRESS_BANNER": "1",
            "ALLOW_SHORT_CONTEXT_WINDOWS": "true",  # less than 16,384 tokens
            "LITELLM_LOCAL_MODEL_COST_MAP": "True",  # not from the network
            "NO_COLOR": "1",
        }
        command = own_python_command(
            f"{folder_of(cls.name)}/python",
            f'{folder_of(cls.name)}/run.py --headless --json --always-approve -t "$(cat {HOME}/task.txt)" </dev/null',
        )
        files = {"task.txt": launch.task.statement, ".openhands/agent_settings.json": json.dumps(agent)}
        return Command(command, environment, files)


# The Python of its layer.
# Every image with glibc has these, and they must fit each other.
_GLIBC = re.compile(r"(ld-linux[^/]*|lib(c|m|dl|rt|util|pthread|resolv|nsl))\.so")
# These parts of the standard library are not copied: what other packages bring, and what no agent imports.
_LEFT_OUT = (
    *("site-packages", "dist-packages", "config-*", "test", "idlelib", "turtledemo", "ensurepip", "lib2to3"),
    *("tkinter", "_tkinter*"),
)
_DESCRIBE = (
    "import json, os, sys, sysconfig; "
    "print(json.dumps([os.path.realpath(sys.executable), sys.base_prefix, sysconfig.get_path('stdlib')]))"
)


def copy_python(version: str, folder: Path) -> Path:
    """Copy this machine's CPython (version: "3.12") to `folder/bin/python`, with its standard library and the shared
    libraries that it needs, which lie in `folder/lib`. Returns the program that was copied, for pip to install with.
    Raises `UserError` where there is none.
    """
    program, prefix, library = find_python(version)
    copied = folder / library.relative_to(prefix)
    shutil.copytree(library, copied, ignore=shutil.ignore_patterns(*_LEFT_OUT), ignore_dangling_symlinks=True)
    (folder / "bin").mkdir()
    shutil.copy2(program, folder / "bin" / "python")
    (folder / "lib").mkdir(exist_ok=True)
    for needed in _needed([program, *copied.glob("lib-dynload/*.so")]):
        shutil.copy2(needed, folder / "lib" / needed.name)
    return program


def own_python_command(folder: str, arguments: str) -> str:
    """Return a command for the copy in `folder`. Its program should restore `LD_LIBRARY_PATH` for what it starts."""
    paths = f"IMAGE_LIBRARY_PATH=$LD_LIBRARY_PATH LD_LIBRARY_PATH={folder}/lib"
    return f"{paths} {folder}/bin/python -I {arguments}"


def find_python(version: str) -> tuple[Path, Path, Path]:
    """Find the first `python<version>` on the path that runs: its program, its prefix, its standard library."""
    for place in os.get_exec_path():
        program = shutil.which(f"python{version}", path=place)
        if program is None:
            continue
        done = _run([program, "-I", "-c", _DESCRIBE])
        if done.returncode == 0:  # else it is a shim of pyenv's for a version that is not chosen
            found = [Path(path) for path in json.loads(done.stdout)]
            return found[0], found[1], found[2]
    raise UserError(
        f"there is no python{version} on the path: install it (uv python install {version}), "
        f"or put the folder that has it on PATH"
    )


def _needed(files: Sequence[Path]) -> Iterator[Path]:
    """Yield the shared libraries that these files are linked with, but for glibc's."""
    said = _run(["ldd", *map(str, files)]).stdout  # it fails if one of them is linked with none
    for path in sorted({*re.findall(r"=> (/\S+) \(0x", said)}):
        if not _GLIBC.match(Path(path).name):
            yield Path(path)


def _run(command: Sequence[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
