"""The benchmark's model of SLiME's rollout loops against SLiME's own code, on the same simulated machines."""

from __future__ import annotations

import pytest

from benchmarks import schedule_slime
from slime_swe.launch.plan.simulation import Ledger
from slime_swe.launch.plan.simulation.machines import Cluster, simulate
from slime_swe.launch.plan.simulation.workload import Assumed


def trained(loops, name, seed):
    """What a run trained, and when each step ended."""

    async def main():
        ledger = Ledger(Assumed(seed, turns=8.0), Cluster(nodes=1), slots=32, size=4)
        await getattr(loops, name)(ledger, 8, 6)
        return ledger.trained, ledger.ends, ledger.figures(0)

    return simulate(main())


@pytest.mark.parametrize("seed", (0, 1))
@pytest.mark.parametrize("name", ("slime_sync", "slime_fully_async"))
def test_the_model_trains_what_slime_trains_when_slime_does(slime_home, name, seed):
    from benchmarks import schedule_slime_real

    assert trained(schedule_slime, name, seed) == trained(schedule_slime_real, name, seed)
