"""The checkouts of SLiME and Megatron-LM that `engine=slime_cpu` runs, and how a person gets them."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from recipes.base import RecipeError


@dataclass(frozen=True)
class Checkout:
    """variable: names the folder. mark: a file that it holds. The commit is the one that the figures are from."""

    variable: str
    folder: str
    repository: str
    commit: str
    mark: str

    def command(self) -> str:
        """Two git commands on one line; the second takes the commit alone."""
        return (
            f"git clone --filter=blob:none https://github.com/{self.repository}.git {self.folder} && "
            f"git -C {self.folder} checkout {self.commit}"
        )


SLIME = Checkout("SLIME_HOME", "slime", "THUDM/slime", "624b824a898ab0ec1fcb4d373004c7f3852bf515", "train.py")
MEGATRON = Checkout(
    "MEGATRON_HOME",
    "Megatron-LM",
    "NVIDIA/Megatron-LM",
    "1dcf0dafa884ad52ffb243625717a3471643e087",
    "megatron/training/arguments.py",
)
PATCH = "git -C Megatron-LM apply ../slime/docker/patch/latest/megatron.patch"
PATCHED = ("megatron/core/distributed/distributed_data_parallel.py", "disable_grad_buffers_cpu_backup")


def require_checkouts(environment: Mapping[str, str]) -> None:
    """Raise `RecipeError`, with the commands that put it right, where a checkout or SLiME's patch is missing."""
    for checkout in (SLIME, MEGATRON):
        given = environment.get(checkout.variable)
        if not given:
            raise RecipeError(f"engine=slime_cpu runs checkouts, and {checkout.variable} is not set: {_all_commands()}")
        if not (Path(given) / checkout.mark).is_file():
            raise RecipeError(f"{checkout.variable}={given} holds no {checkout.mark}: {_all_commands()}")
    file, mark = PATCHED
    if mark not in (Path(environment[MEGATRON.variable]) / file).read_text(encoding="utf-8"):
        raise RecipeError(
            f"{MEGATRON.variable}={environment[MEGATRON.variable]} lacks the patch that SLiME's Dockerfile applies: "
            f"{PATCH}"
        )


def _all_commands() -> str:
    exports = f"export {SLIME.variable}=$PWD/{SLIME.folder} {MEGATRON.variable}=$PWD/{MEGATRON.folder}"
    return "\n".join(
        ["make them so:", *("  " + line for line in (SLIME.command(), MEGATRON.command(), PATCH, exports))]
    )


if __name__ == "__main__":
    try:
        require_checkouts(os.environ)
    except RecipeError as error:
        sys.exit(str(error))
