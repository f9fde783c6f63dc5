"""How a part of a drilled run is made to fail, and what the run needs for that."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from slime_swe.errors import InfrastructureError
from slime_swe.launch.ray.processes import owned
from slime_swe.launch.rehearse.faults import PARTS, Drill
from slime_swe.launch.rehearse.faults.processes import Processes, strike
from slime_swe.launch.slime.job import Job


@dataclass
class Injection:
    """The part's processes get its signal. A part that fails in another way has a subclass.

    run: the run's folder, which is not there before. ends_within: seconds in which the run's processes must follow its
    driver.
    """

    ends_within: ClassVar[float] = 10.0
    drill: Drill
    run: Path

    @contextmanager
    def prepared(self) -> Iterator[None]:
        """The folder, and what else the run needs, until the drill is over.

        Raises `InfrastructureError` where this machine does not give it.
        """
        self.run.mkdir(parents=True)
        yield

    def started(self, job: Job) -> Job:
        """The job as it is started, the first time and to resume."""
        return job

    def inject(self, processes: Processes) -> None:
        """Let the part fail. Raises `InfrastructureError` where the run has none."""
        part = PARTS[self.drill.part]
        found = processes.of(part)
        if not found:
            raise InfrastructureError(f"{self.drill.name}: no process of the run is a {self.drill.part}")
        while found:
            strike(found, part)
            found = [] if part.title else processes.of(part)  # what was being started meanwhile

    def living(self, mark: str) -> list[int]:
        """The run's processes; mark: of those that its job has started."""
        return owned(mark)

    def mend(self) -> None:
        """Undo what has failed, before the run is resumed."""
