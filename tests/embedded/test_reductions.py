"""What a token weighs; `tests/contract/test_reductions.py` compares it with SLiME's own loss."""

from __future__ import annotations

import pytest

from slime_swe.embedded.train_data import token_weights
from tests.embedded.test_train_data import made, sampled

# An episode of 2 trained tokens, and one of 6 in two training sequences.
DATA = made([sampled(0, [1, 0, 1], 0), sampled(1, [1, 1], 1), sampled(-2, [1, 0, 1, 1, 1], 1)])


@pytest.mark.parametrize(
    ("reduction", "short", "long"),
    [("trajectory", 1 / 4, 1 / 12), ("token", 1 / 8, 1 / 8), ("constant", 1 / 16, 1 / 16)],
)
def test_weights_are_those_of_the_page(reduction, short, long):
    order = [sum(mask) == 2 and DATA.mask_sums[place] == 2 for place, mask in enumerate(DATA.loss_masks)]
    weights = token_weights(DATA, range(3), reduction, max_context=8)
    assert weights == pytest.approx({place: short if is_short else long for place, is_short in enumerate(order)})


def test_an_optimizer_step_counts_its_own_episodes():
    short = DATA.mask_sums.index(2)
    assert token_weights(DATA, [short]) == {short: 1 / 2}
    assert token_weights(DATA, [short], "token") == {short: 1 / 2}


def test_what_is_removed_counts_as_an_episode_and_as_one_token():
    data = made([sampled(0, [1, 1], 0), sampled(1, [1, 1, 1], 1, remove_sample=True)])
    assert token_weights(data, range(2)) == {0: 1 / 4}
    assert token_weights(data, range(2), "token") == {0: 1 / 3}
    assert token_weights(data, range(2), "constant", max_context=10) == {0: 1 / 20}
