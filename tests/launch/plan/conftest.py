from __future__ import annotations

from collections.abc import Iterator

import pytest

from slime_swe.launch.plan import rollout


@pytest.fixture(scope="module", autouse=True)
def as_published(nothing_measured: None) -> None:
    """What images take."""


@pytest.fixture(scope="module")
def few_steps() -> Iterator[None]:
    """Simulate three steps, with turns put together: a plan takes a third of the time, and what is said of it holds.
    Tests that ask for the same plan share its simulation."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rollout, "WARM_UP", 1)
        patch.setattr(rollout, "MEASURED", 2)
        patch.setattr(rollout, "MOST_TURNS", 300)
        yield
