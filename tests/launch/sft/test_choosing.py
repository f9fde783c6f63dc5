"""Which episodes and turns are trained, by the rules of `slime-swe sft`."""

from __future__ import annotations

import re
from collections import Counter

import pytest

from slime_swe.launch.commands.sft import (
    ERROR,
    FLAG,
    Rules,
    candidates,
    choose,
    failed_turns,
    mask_without,
    sft_samples,
)
from slime_swe.launch.episodes import RecordedEpisode
from slime_swe.rollout.episode import Call, Turn
from slime_swe.rollout.records import Record

PATTERN = re.compile(ERROR)


def said(start: int, text: str = "", **values) -> Turn:
    return Turn("assistant", text, start, start + 2, **values)


def shown(start: int, text: str, **values) -> Turn:
    return Turn("tool", text, start, start + 1, **values)


def record(turns: list[Turn], mask: list[int], task: str = "t", **values) -> Record:
    """Two tokens of prompt before the mask."""
    tokens = [*range(len(mask) + 2)]
    of_it = {"tokens": tokens, "response_length": len(mask), "loss_mask": mask, "turns": turns}
    return Record(0, 0, 0, task, "completed", 1.0, **of_it | values)


def episode(words: str, task: str = "t", turns: int = 1, failed: int = 0) -> RecordedEpisode:
    """Of so many turns, the first of which failed, saying these words."""
    found, mask = [Turn("user", "Do it.", 0, 1)], []
    for number in range(turns):
        found += [said(2 + 3 * number, f"{words} {number}"), shown(4 + 3 * number, "ok", failed=number < failed)]
        mask += [1, 1, 0]
    return RecordedEpisode([record(found, mask, task)], [[]], [None])


@pytest.mark.parametrize(
    ("answer", "is_error"),
    [
        (shown(4, "old_str not found in a.py", failed=True), True),
        (shown(4, "Error: unknown tool 'x'"), True),
        (shown(4, "<tool_use_error>File does not exist.</tool_use_error>"), True),
        (Turn("user", "Your reply was cut off", 4, 5, failed=True), True),
        (shown(4, "FAILED test_a\n[exit code 1]"), False),
        (shown(4, "Errors: 0"), False),
        (Turn("user", "Error: says the user", 4, 5), False),
    ],
)
def test_an_error_is_a_call_that_did_nothing_and_not_a_test_that_fails(answer, is_error):
    first = said(2, "a")
    turns = [Turn("user", "Do it.", 0, 1), first, answer, said(5, "b"), shown(7, "ok")]
    assert failed_turns(turns, PATTERN) == ([first] if is_error else [])


def test_a_malformed_call_is_an_error_and_one_of_several_calls_makes_the_turn_one():
    broken = said(2, calls=[Call("1", "view", '{"path"')])
    unnamed = said(5, calls=[Call("2", "unnamed_tool", "{}")])
    several = said(8, calls=[Call("3", "view", "{}"), Call("4", "view", "{}")])
    turns = [broken, unnamed, several, shown(10, "ok"), shown(11, "No such file", failed=True), said(12)]
    assert failed_turns(turns, PATTERN) == [broken, unnamed, several]


def test_an_error_stays_as_context_and_only_its_tokens_leave_the_mask():
    failed, good = said(2, "a"), said(5, "b")
    turns = [Turn("user", "Do it.", 0, 1), failed, shown(4, "no", failed=True), good]
    one = record(turns, [1, 1, 0, 1, 1])
    assert mask_without(one, [failed]) == [0, 0, 0, 1, 1]
    (sample,) = sft_samples(RecordedEpisode([one], [[]], [None]), PATTERN)
    line = sample.line("name", "vocabulary")
    assert line["tokens"] == one.tokens and line["loss_mask"] == [0, 0, 0, 1, 1]
    assert [message.get(FLAG) for message in line["messages"]] == [None, 0, None, 1]
    (sample,) = sft_samples(RecordedEpisode([one], [[]], [None]), None)
    assert sample.mask == [1, 1, 0, 1, 1] and sample.flags == [False, True, False, True]


def test_an_episode_whose_every_turn_failed_trains_nothing():
    turns = [said(2, "a"), shown(4, "no", failed=True)]
    assert sft_samples(RecordedEpisode([record(turns, [1, 1, 0])], [[]], [None]), PATTERN) == []


@pytest.mark.parametrize("has_tokens", [True, False])
def test_a_turn_that_two_samples_show_is_trained_once(has_tokens):
    first, second = said(2, "a"), said(5, "b", began=1.0)
    before = [Turn("user", "Do it.", 0, 1), first]
    samples = [record(before, [1, 1]), record([*before, shown(4, "ok"), second], [0, 0, 0, 1, 1])]
    if not has_tokens:
        samples = [Record(0, 0, 0, "t", "completed", 1.0, turns=one.turns) for one in samples]
    made = sft_samples(RecordedEpisode(samples, [[], []], [None, None]), PATTERN)
    assert [sample.flags for sample in made] == [[False, True], [False, False, False, True]]
    assert ("tokens" in made[0].line("name", "")) is has_tokens


def chosen(episodes, **rules) -> tuple[list[int], Counter[str]]:
    left_out = Counter[str]()
    contaminated = rules.pop("contaminated", ())
    found = Rules(errors=PATTERN, **rules)
    return sorted(choose(candidates(episodes, found, contaminated, left_out), found, left_out)), left_out


def test_so_many_of_a_task_with_the_fewest_errors_and_turns_first():
    words = ["look at the parser", "run every single test now", "think about the loop", "read what the list holds"]
    episodes = [episode(words[0], turns=3), episode(words[1], turns=2, failed=1), episode(words[2], turns=2),
                episode(words[3], "other", turns=9)]  # fmt: skip
    assert chosen(episodes, per_task=2) == ([0, 2, 3], Counter(enough_of_the_task=1))
    assert chosen(episodes, per_task=1) == ([2, 3], Counter(enough_of_the_task=2))


def test_what_says_nearly_the_same_is_taken_once_whatever_its_task():
    text = " ".join(f"word{number}" for number in range(200))
    other = " ".join(f"another{number}" for number in range(200))
    episodes = [episode(text), episode(f"{text} more", "b"), episode(other, "c"), episode(text[: len(text) // 2], "d")]
    assert chosen(episodes) == ([0, 2, 3], Counter(duplicate=1))
    assert chosen(episodes, similar=1.0) == ([0, 1, 2, 3], Counter())


def test_caps_and_contaminated_tasks_leave_out_with_the_reason():
    episodes = [episode("a b c d e f"), episode("g h i j k l", turns=5), episode("m n o p q r", "held")]
    assert chosen(episodes, max_turns=4, contaminated={"held"}) == ([0], Counter(too_many_turns=1, contaminated=1))
    assert chosen(episodes, max_tokens=6) == ([0, 2], Counter(too_long=1))
