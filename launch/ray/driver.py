"""Be the driver of a run's Ray job, which one process is at a time: python -m slime_swe.launch.ray.driver ARGV ...

The launcher's own lock ends with the launcher, and the job may outlive it on a cluster that was there before. So the
driver holds a lock too, on `drivers.jsonl` in the run's folder, in which the job is started.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from slime_swe.attempts import attempting
from slime_swe.errors import UserError
from slime_swe.launch.slime.paths import DRIVERS


def main(argv: Sequence[str]) -> NoReturn:
    """Replace this process by the program, which takes over its lock."""
    try:
        with attempting(Path.cwd() / DRIVERS) as attempt:
            os.set_inheritable(attempt.descriptor, True)
            os.execvp(argv[0], list(argv))
    except UserError as error:
        print(f"slime-swe: {error}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main(sys.argv[1:])
