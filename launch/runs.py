"""The folder of one run, `<run.dir>/<run.name>/`: making it, finding it, telling whether a recipe still fits it.

Then one attempt at the run, or at an evaluation, whose end is recorded in the folder's `status.json`.
"""

from __future__ import annotations

import dataclasses
import difflib
import errno
import os
import shlex
import signal
import stat
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from slime_swe.attempts import ATTEMPTS, Attempt, HeldError, attempting, require_ended
from slime_swe.errors import InfrastructureError, UserError
from slime_swe.files import FileError, replace_file
from slime_swe.launch.cli import FAILURE, USER_ERROR
from slime_swe.launch.config import dump_recipe, flatten, read_recipe, with_value
from slime_swe.launch.ray.processes import handling, interrupting
from slime_swe.recipes.base import Recipe
from slime_swe.saving import TRY_AGAIN, StoppedToResume, request_stop, withdraw_request
from slime_swe.status import STATUS, StatusFile

RECIPE_FILE = "recipe.yaml"
LENGTH = "run.num_rollouts"
KEPT = ("run.keep_checkpoints", "run.keep_exports", "run.keep_best", "run.save_every_minutes", "rollout.keep_disk_free")
_WHERE = frozenset({"run.name", "run.dir", "cluster.ray_address", "cluster.interface"})  # a run may be moved
# What a start leaves that was killed before it had written its recipe.
_LEFT = frozenset({ATTEMPTS, STATUS, f".{RECIPE_FILE}.tmp"})


def with_name(recipe: Recipe) -> Recipe:
    """Return the recipe itself, or with a run name made of recipe, seed and local time where it has none."""
    name = f"{recipe.name}-seed{recipe.run.seed}-{time.strftime('%Y%m%d-%H%M%S')}"
    return recipe if recipe.run.name else with_value(recipe, "run.name", name)


def require_new(folder: Path) -> None:
    """Raise `UserError` where a new run can't have this folder, which may be there and hold nothing yet."""
    require_usable(folder)
    if (folder / RECIPE_FILE).exists():
        require_ended(folder / ATTEMPTS)
        raise UserError(f"the run {folder} exists already: add --resume to go on with it, or give another run.name")
    others = sorted(path.name for path in folder.iterdir() if path.name not in _LEFT) if folder.exists() else []
    if others:
        raise UserError(f"{folder} holds no run, and {others[0]} is in it: empty it, or give another run.name")


def make_folder(folder: Path, option: str = "run.dir") -> None:
    """Make a folder where there is none. Raises `UserError` where it can't be made. `option`: what has named it."""
    require_usable(folder, option)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"can't make the run folder {folder}: {error.strerror}; give another {option}") from error


def create_run(recipe: Recipe) -> Path:
    """Make a new folder that holds the resolved recipe. Raises `UserError` where it exists or can't be written."""
    folder = Path(recipe.run.dir) / recipe.run.name
    require_new(folder)
    make_folder(folder)
    try:
        replace_file(folder / RECIPE_FILE, dump_recipe(recipe).encode())
    except OSError as error:
        raise UserError(f"can't write {folder / RECIPE_FILE}: {error.strerror}; give another run.dir") from error
    return folder


def require_usable(folder: Path, option: str = "run.dir") -> None:
    """Raise `UserError` that names what stands where the folder or one above it should be, or may not be written."""
    there = folder
    for path in reversed((folder, *folder.parents)):
        try:
            found = path.stat()
        except FileNotFoundError:
            if path.is_symlink():
                raise UserError(
                    f"can't make the run folder {folder}: {path} is a symbolic link to {path.readlink()}, which does "
                    f"not exist. Make that folder, remove the link, or give another {option}"
                ) from None
            there = path.parent
            break
        except OSError as error:
            what = "a symbolic link that leads to itself" if error.errno == errno.ELOOP else error.strerror
            raise UserError(f"can't make the run folder {folder}: {path}: {what}; give another {option}") from error
        if not stat.S_ISDIR(found.st_mode):
            raise UserError(f"can't make the run folder {folder}: {path} is a file; give another {option}")
    if not os.access(there, os.W_OK | os.X_OK):
        read_only = os.statvfs(there).f_flag & os.ST_RDONLY
        why = os.strerror(errno.EROFS) if read_only else f"{there} may not be written"
        raise UserError(f"can't make the run folder {folder}: {why}; give another {option}")


def find_run(name: str, directory: str = "runs") -> Path:
    """Find the folder of an existing run, given its name or its path. Raises `UserError` with the nearest names."""
    for folder in (Path(directory) / name, Path(name)):
        if name and (folder / RECIPE_FILE).is_file():
            return folder
    there = sorted(path.parent.name for path in Path(directory).glob(f"*/{RECIPE_FILE}"))
    nearest = difflib.get_close_matches(name, there, n=3, cutoff=0.3)
    hint = f"did you mean {' or '.join(nearest)}?" if nearest else f"there are: {', '.join(there) or 'none'}"
    what = f"there is no run {name!r} in {directory}" if name else f"no run of {directory} is named by run.name=NAME"
    raise UserError(f"{what}: {hint}")


def to_go_on(recipe: Recipe) -> str:
    """Return the command that resumes the recipe's run."""
    where = "" if recipe.run.dir == "runs" else f" {shlex.quote(f'run.dir={recipe.run.dir}')}"
    return f"slime-swe train {shlex.quote(f'run.name={recipe.run.name}')}{where} --resume"


def require_same(recipe: Recipe, folder: Path) -> None:
    """Raise `UserError` with the differing keys where the run in `folder` was started with another recipe.

    A run may be made longer, unless its learning rate falls to zero at its end, and may keep other checkpoints and
    images and save at other times; its recipe is then written anew.
    """
    if changes(recipe, folder):
        replace_file(folder / RECIPE_FILE, dump_recipe(recipe).encode())


def changes(recipe: Recipe, folder: Path) -> list[str]:
    """List the keys that differ from the run's recipe, each of which may. Raises `UserError` where one may not."""
    before = dict(flatten(dataclasses.asdict(read_recipe(folder / RECIPE_FILE))))
    now = dict(flatten(dataclasses.asdict(recipe)))
    changed = [key for key in now if key not in _WHERE and now[key] != before[key]]
    longer = now[LENGTH] > before[LENGTH] and recipe.optimizer.schedule == "constant"
    if not {*KEPT, LENGTH}.issuperset(changed) or (LENGTH in changed and not longer):
        listed = "; ".join(f"{key} was {before[key]!r} and is {now[key]!r}" for key in changed[:5])
        raise UserError(
            f"can't resume {folder} with another recipe: {listed}. Leave these out, or start a new run with another "
            "run.name; a run can be made longer where optimizer.schedule=constant"
        )
    return changed


@contextmanager
def attempt_with_status(folder: Path) -> Iterator[Attempt]:
    """Record an attempt as `attempting` does. An exception is recorded with the exit code that `slime-swe` has for it;
    what ends without one records its own, by `record_end`."""
    with attempting(folder / ATTEMPTS) as attempt, interrupting() as signals:
        try:
            yield attempt
        except HeldError:  # the folder is another process's
            raise
        except BaseException as error:
            StatusFile(folder, attempt.number).on_end(*_ending(error, signals))
            raise


@contextmanager
def stopping_when_asked(folder: Path, ends_at: float | None) -> Iterator[None]:
    """Have the run in `folder` stop after the last step that ends before `ends_at`, if any, in seconds of Unix time; on
    SIGUSR1, after the step that runs. What an earlier attempt was asked for is forgotten."""
    if ends_at is None:
        withdraw_request(folder)
    else:
        request_stop(folder, ends_at)

    def ask(number: int, frame: FrameType | None) -> None:
        try:
            request_stop(folder)
        except FileError as error:
            print(f"slime-swe: can't stop after this step: {error}", file=sys.stderr, flush=True)

    with handling({signal.SIGUSR1: ask}):
        yield


def record_end(folder: Path, attempt: Attempt, exit_code: int) -> None:
    """Record that the attempt has come to its end by itself."""
    StatusFile(folder, attempt.number).on_end(exit_code)


def _ending(error: BaseException, signals: Sequence[int]) -> tuple[int, str]:
    if isinstance(error, StoppedToResume):
        return TRY_AGAIN, str(error)
    if isinstance(error, KeyboardInterrupt):
        number = signals[0] if signals else signal.SIGINT
        return 128 + number, f"interrupted by {signal.Signals(number).name}"
    known = isinstance(error, UserError | InfrastructureError)
    said = str(error) if known else f"{type(error).__name__}: {error}"
    return USER_ERROR if isinstance(error, UserError) else FAILURE, said
