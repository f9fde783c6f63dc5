"""Checkpoints: everything that a run needs to go on as if it had never stopped.

    checkpoints/rollout_<k>/hf/            the policy after rollout k, in Hugging Face format, tokenizer included
    checkpoints/rollout_<k>/optimizer.pt   optimizer moments, step count
    checkpoints/rollout_<k>/random.pt      global random-number generators, for plug-ins that use them
    checkpoints/rollout_<k>/state.json     configuration, sizes of the run's journals and of these files, seconds so far
    checkpoints/rollout/…_<k>.json         the data source's own state, dropped with the checkpoint

A checkpoint is written under a temporary name, flushed to disk and renamed: it is there whole or not at all. One that
was damaged afterwards is passed over for the one before. Journals are cut back to the recorded sizes on resumption, so
that what happened after the checkpoint is not counted twice.
"""

from __future__ import annotations

import io
import os
import pickle
import random
import re
import shutil
import sys
from argparse import Namespace
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import orjson
import safetensors
import torch

from slime_swe.embedded.model import digest
from slime_swe.errors import UserError
from slime_swe.fields import read
from slime_swe.files import sync_folder, write_file, writing

STATE_FILE = "state.json"
_DATA_SOURCE_STATE = re.compile(r".*_(\d+)\.\w+")
# May differ on resume. A longer run is the same run, where the learning rate does not depend on its length.
VOLATILE = frozenset(
    {"save", "load", "num_rollout", "swe_keep_checkpoints", "swe_keep_exports", "swe_run_dir", "swe_attempt"}
    | {"swe_keep_best", "swe_save_every_minutes", "swe_keep_disk_free"}
    | {"swe_trackers", "swe_project", "swe_alarms"}
    | {"sglang_router_ip", "sglang_router_port"}
)


class ResumeError(UserError):
    """A run can't be resumed from what is there; the message says what differs or is missing."""


class DamagedError(UserError):
    """A checkpoint lacks something; the message says what."""


@dataclass(frozen=True)
class State:
    """`State` is what a checkpoint knows besides tensors.

    journals: file name -> bytes. seconds: phase -> seconds. attempt: the run's attempt that wrote it. files: path in
    the checkpoint -> bytes, as `save` wrote them.
    """

    rollout_id: int
    config: Mapping[str, Any]
    journals: Mapping[str, int]
    seconds: Mapping[str, float]
    attempt: int = 0
    files: Mapping[str, int] = field(default_factory=dict, compare=False)


@dataclass(frozen=True)
class Checkpoint:
    """A whole checkpoint on disk."""

    path: Path
    state: State

    @property
    def model_dir(self) -> Path:
        return self.path / "hf"

    def optimizer_state(self) -> bytes:
        return (self.path / "optimizer.pt").read_bytes()

    def restore_random(self) -> None:
        """Put the global random-number generators where they were."""
        saved = load_tensors((self.path / "random.pt").read_bytes())
        random.setstate((saved["python"][0], tuple(saved["python"][1]), saved["python"][2]))
        torch.set_rng_state(saved["torch"])

    def require_loadable(self) -> None:
        """Raise `DamagedError` where tensors can't be read. Altered weights of the same size are not noticed."""
        try:
            load_tensors(self.optimizer_state())
            load_tensors((self.path / "random.pt").read_bytes())
            for file in self.model_dir.glob("*.safetensors"):
                with safetensors.safe_open(file, framework="pt"):
                    pass
        except OSError as error:
            raise DamagedError(f"{error.filename}: {error.strerror}") from error
        except (ValueError, safetensors.SafetensorError) as error:
            raise DamagedError(str(error)) from error


def load_tensors(content: bytes) -> Any:
    """Read what `torch.save` wrote. Raises `ValueError` where it can't be read."""
    try:
        return torch.load(io.BytesIO(content), weights_only=True)
    except (RuntimeError, EOFError, KeyError, pickle.UnpicklingError) as error:  # what a cut or altered file leads to
        raise ValueError(f"optimizer.pt or random.pt is no file of tensors: {str(error).splitlines()[0]}") from error


def configuration(args: Namespace) -> dict[str, Any]:
    """Return the arguments that make a run what it is, as plain JSON types; the first model is in it by its content,
    not its place.

    Reads that model's files. Raises `CheckpointError` where it can't.
    """
    kept = {name: value for name, value in vars(args).items() if name not in VOLATILE}
    kept["hf_checkpoint"] = digest(args.hf_checkpoint)
    plain: dict[str, Any] = orjson.loads(orjson.dumps(kept, default=str, option=orjson.OPT_NON_STR_KEYS))
    return plain


def save(folder: Path, state: State, model_dir: Path, optimizer: bytes, *, keep: int, best: int | None = None) -> Path:
    """Write checkpoint `state.rollout_id` and drop all but the newest `keep`, and that of the rollout `best`; 0 drops
    none. With them go their states of the data source.

    `model_dir`'s files are linked, not copied: they must be replaced, never changed in place. Raises
    `FileError` where the disk is full; earlier checkpoints are then untouched.
    """
    final = folder / f"rollout_{state.rollout_id}"
    temporary = folder / f".{final.name}.tmp"
    with writing(folder):
        try:
            shutil.rmtree(temporary, ignore_errors=True)
            (temporary / "hf").mkdir(parents=True)
            for file in sorted(model_dir.iterdir()):
                os.link(file, temporary / "hf" / file.name)
            write_file(temporary / "optimizer.pt", optimizer)
            write_file(temporary / "random.pt", _random_state())
            state = replace(state, files=_sizes(temporary))
            write_file(temporary / STATE_FILE, orjson.dumps(asdict(state), option=orjson.OPT_INDENT_2))
            sync_folder(temporary / "hf")
            sync_folder(temporary)
            shutil.rmtree(final, ignore_errors=True)
            os.rename(temporary, final)
            sync_folder(folder)
        except OSError:
            shutil.rmtree(temporary, ignore_errors=True)
            raise
    if keep:
        _keep_newest(folder, keep, best)
    return final


def latest(folder: Path, require: Callable[[Checkpoint], None] = lambda checkpoint: None) -> Checkpoint | None:
    """Find the newest whole checkpoint; None where there is none of any kind. Damaged ones are named on standard error.

    `require` raises `DamagedError` for what it finds damaged. Raises `ResumeError` where all are damaged.
    """
    damaged: list[str] = []
    for number in reversed(_numbers(folder)):
        path = folder / f"rollout_{number}"
        try:
            found = _read(path)
            require(found)
        except DamagedError as error:
            damaged.append(f"checkpoint {path} is damaged ({error})")
            continue
        for what in damaged:
            print(f"{what}: {path.name} is taken in its place", file=sys.stderr)
        return found
    if damaged:
        raise ResumeError(f"{'; '.join(damaged)}; there is no whole one: remove it to start the run from its beginning")
    return None


def require_same(checkpoint: Checkpoint, args: Namespace) -> None:
    """Raise `ResumeError` with every argument that differs from the checkpoint's run."""
    before, now = dict(checkpoint.state.config), configuration(args)
    changed = [name for name in sorted(before.keys() | now.keys()) if before.get(name) != now.get(name)]
    if changed:
        listed = "; ".join(f"{name} was {before.get(name)!r} and is {now.get(name)!r}" for name in changed)
        raise ResumeError(
            f"can't resume {checkpoint.path} with another configuration: {listed}. "
            "Give the same values, or start a new run"
        )


def _read(path: Path) -> Checkpoint:
    """Read a checkpoint. Raises `DamagedError` where its state can't be read, or a file is missing or resized."""
    try:
        state = read(State, orjson.loads((path / STATE_FILE).read_bytes()), STATE_FILE)
        there = _sizes(path)
    except OSError as error:
        raise DamagedError(f"{error.filename}: {error.strerror}") from error
    except ValueError as error:
        raise DamagedError(str(error)) from error
    for name, size in state.files.items():
        if there.get(name) != size:
            raise DamagedError(f"{name} has {there[name]} bytes and had {size}" if name in there else f"no {name}")
    return Checkpoint(path, state)


def _sizes(path: Path) -> dict[str, int]:
    """Return the bytes of every file but the state itself, by its path in the checkpoint."""
    files = (file for file in path.rglob("*") if file.is_file() and file.name != STATE_FILE)
    return {str(file.relative_to(path)): file.stat().st_size for file in sorted(files)}


def _keep_newest(folder: Path, keep: int, best: int | None) -> None:
    numbers = _numbers(folder)
    for number in numbers[:-keep]:
        if number != best:
            shutil.rmtree(folder / f"rollout_{number}")
    oldest = numbers[-keep:][0]
    for file in folder.glob("rollout/*"):
        found = _DATA_SOURCE_STATE.fullmatch(file.name)
        if found and int(found[1]) < oldest and int(found[1]) != best:
            file.unlink()


def _numbers(folder: Path) -> list[int]:
    if not folder.is_dir():
        return []
    return sorted(int(found[1]) for entry in folder.iterdir() if (found := re.fullmatch(r"rollout_(\d+)", entry.name)))


def _random_state() -> bytes:
    version, numbers, gauss = random.getstate()
    buffer = io.BytesIO()
    torch.save({"python": [version, list(numbers), gauss], "torch": torch.get_rng_state()}, buffer)
    return buffer.getvalue()
