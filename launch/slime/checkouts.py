"""The checkouts of a train loop, SLiME or its fork, and of Megatron-LM: where they are, which commits were tested, and
how a person gets them.

python -m slime_swe.launch.slime.checkouts      # what `engine=slime_cpu` lacks, with the commands that make it
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from slime_swe.errors import UserError


@dataclass(frozen=True)
class Checkout:
    """A checkout. variable: names its folder. image: where the train loop's image has it. mark: what it holds.

    commit: the one whose flags we know, and that all figures are from.
    """

    variable: str
    image: str
    commit: str
    mark: str

    def find(self, environment: Mapping[str, str]) -> Path:
        """Return the folder that the variable names, else where the image has it."""
        return Path(environment.get(self.variable) or self.image).absolute()


SLIME = Checkout("SLIME_HOME", "/root/slime", "624b824a898ab0ec1fcb4d373004c7f3852bf515", "train.py")
MEGATRON = Checkout(
    "MEGATRON_HOME",
    "/root/Megatron-LM",
    "1dcf0dafa884ad52ffb243625717a3471643e087",
    "megatron/training/arguments.py",
)
PATCHED = ("megatron/core/distributed/distributed_data_parallel.py", "disable_grad_buffers_cpu_backup")
PATCH = "git -C Megatron-LM apply ../slime/docker/patch/latest/megatron.patch"
COMMANDS = f"""make them so:
  git clone --filter=blob:none https://github.com/THUDM/slime.git
  git -C slime checkout {SLIME.commit}
  git clone --filter=blob:none https://github.com/NVIDIA/Megatron-LM.git
  git -C Megatron-LM checkout {MEGATRON.commit}
  {PATCH}
  export {SLIME.variable}=$PWD/slime {MEGATRON.variable}=$PWD/Megatron-LM"""


# https://github.com/radixark/miles, SLiME's fork, and the Megatron-LM that it is made for.
MILES = Checkout("MILES_HOME", "/root/miles", "31f1ca961a94cb860cec3b2dea34ec332bfa8f76", SLIME.mark)
MILES_MEGATRON = Checkout(MEGATRON.variable, MEGATRON.image, "2e64d788b67fe8155774200c87606e1e449c494b", MEGATRON.mark)
MILES_COMMANDS = f"""make them so:
  git clone --filter=blob:none https://github.com/radixark/miles.git
  git -C miles checkout {MILES.commit}
  git clone --filter=blob:none --branch miles-main https://github.com/radixark/Megatron-LM.git
  git -C Megatron-LM checkout {MILES_MEGATRON.commit}
  export {MILES.variable}=$PWD/miles {MILES_MEGATRON.variable}=$PWD/Megatron-LM"""


@dataclass(frozen=True)
class Checkouts:
    """The checkouts of the train loop and of Megatron-LM, at the same path on every node."""

    loop: Path
    megatron: Path


def require_checkouts(environment: Mapping[str, str], who: str = "engine=slime_cpu") -> None:
    """Raise `UserError`, with the commands that put it right, where a checkout or SLiME's patch is missing.

    who: runs the checkouts.
    """
    for checkout in (SLIME, MEGATRON):
        given = environment.get(checkout.variable)
        if not given:
            raise UserError(f"{who} runs checkouts, and {checkout.variable} is not set: {COMMANDS}")
        if not (Path(given) / checkout.mark).is_file():
            raise UserError(f"{checkout.variable}={given} holds no {checkout.mark}: {COMMANDS}")
    file, mark = PATCHED
    if mark not in (MEGATRON.find(environment) / file).read_text(encoding="utf-8"):
        raise UserError(f"{MEGATRON.variable} lacks the patch that SLiME's Dockerfile applies: {PATCH}")


if __name__ == "__main__":
    try:
        require_checkouts(os.environ)
    except UserError as error:
        sys.exit(str(error))
