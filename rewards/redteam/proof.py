"""Remembers on this machine that the gate has passed for this code.

The result of the gate depends on the kernel, on bubblewrap or Docker and on the image as much as on our code. So the
package contains no proof: the first run on a machine plays the gate, and later runs find its fingerprint. If any of
these changes, the gate is played again. The images that tasks name are not part of the fingerprint.
"""

from __future__ import annotations

import asyncio
import hashlib
import importlib.util
import json
import os
import platform
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from slime_swe.errors import UserError
from slime_swe.files import cache_folder, keep_in_cache
from slime_swe.rewards.grade import DEFAULTS, GradingSettings
from slime_swe.rewards.redteam.gate import Result, run_gate
from slime_swe.sandbox.pool import BACKENDS, make_backend

# The files that decide how a patch is made, graded and confined; paths below the folder that holds our packages.
_CODE = (
    "rewards",
    "sandbox",
    "rollout/play.py",
    "rollout/agents/blocks.py",
    "rollout/agents/step.py",
    "patches",
    "data_sources/arc",
    "data_sources/diff.py",
    "data_sources/factory/runs.py",
    "data_sources/factory/writing.py",
    "data_sources/steps.py",
    "data_sources/task.py",
    "data_sources/test_log.py",
    "data_sources/vulnerability.py",
)
_SUFFIXES = (".py", ".sh", ".toml")
_SHOWN = 10


def require_integrity(sandbox: str, grader: str, settings: GradingSettings = DEFAULTS) -> None:
    """Play the gate unless it has passed before. Raises `UserError` where it does not hold, or can't be played.

    It takes ten seconds or more, and says so on standard error.
    """
    proof = proof_path(sandbox, grader)
    if proof.is_file():
        return
    print(f"checking that no known cheat is rewarded ({sandbox} × {grader}), once for this version", file=sys.stderr)
    result = asyncio.run(run_gate(sandbox, grader, settings=settings))
    if not result.passed:
        raise UserError(refusal(result))
    save(result, proof_path(sandbox, grader))  # not `proof`: playing may have pulled the image


def save(result: Result, proof: Path) -> None:
    """Remember a gate that has passed; where the folder can't be written, it is played again next time."""
    record = {key: value for key, value in result.to_dict().items() if key != "rows"}
    content = json.dumps(record, indent=2).encode()
    keep_in_cache(proof, content, "the gate's result", "the next run plays it again")


def proof_path(sandbox: str, grader: str) -> Path:
    """Return the file in which a passed gate is recorded."""
    return cache_folder("integrity") / f"{sandbox.partition(':')[0]}-{grader}-{fingerprint(sandbox)}.json"


def fingerprint(sandbox: str) -> str:
    """Return the fingerprint of the code and the machine: a change of either asks for a new gate."""
    digest = hashlib.sha256()
    for path in sorted(_sources(sandbox)):
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    facts = [sandbox, sys.version, platform.release(), str(os.geteuid())]
    with suppress(UserError):  # opening the sandbox will say so
        facts += make_backend(sandbox).fingerprint()
    digest.update("\0".join(facts).encode())
    return digest.hexdigest()[:24]


def _sources(sandbox: str) -> Iterator[Path]:
    root = Path(__file__).parents[2]
    for name in _CODE:
        path = root / name
        found = [path] if path.is_file() else [p for p in path.rglob("*") if p.suffix in _SUFFIXES]
        assert found, f"{path} is not there"
        yield from found
    kind = sandbox.partition(":")[0]
    with suppress(ModuleNotFoundError, ValueError):  # opening the sandbox will say so
        spec = importlib.util.find_spec(BACKENDS.get(kind, kind).rpartition(".")[0])
        if spec is not None and spec.origin is not None:
            yield Path(spec.origin)  # a backend of the person's own


def refusal(result: Result) -> str:
    """Say what got past the gate, for the person whose run is refused."""
    shown = "\n".join(f"  {row.name}: {row.verdict} ({row.outcome})" for row in result.failures[:_SHOWN])
    more = f"\n  and {len(result.failures) - _SHOWN} more" if len(result.failures) > _SHOWN else ""
    improvable = make_backend(result.sandbox).isolates == "if possible"
    hint = "install bubblewrap, and allow user namespaces" if improvable else "choose another sandbox"
    return (
        f"the integrity gate of sandbox {result.sandbox} and grader {result.grader} does not hold, so that a policy "
        f"could learn to cheat:\n{shown}{more}\n`slime-swe integrity {result.sandbox} --grader {result.grader}` shows "
        f"what each did. {hint[0].upper()}{hint[1:]}; or go on all the same with --ignore-integrity"
    )
