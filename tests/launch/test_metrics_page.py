"""`docs/metrics.md` has every figure that is written, and no other: those of a run of the embedded engine with
everything that can be counted in it, of SLiME's logging hooks, and of SLiME's own that are read back."""

from __future__ import annotations

import re
from argparse import Namespace
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import pytest

from slime_swe.embedded.loop import train
from slime_swe.embedded.trackers import figures_of
from slime_swe.journal import Journal
from slime_swe.launch.slime_cpu import run
from slime_swe.rollout.collect import Rollout
from slime_swe.rollout.metrics import GAP_BEFORE
from slime_swe.rollout.records import write_failure
from slime_swe.rollout.slime_plugin import log_evaluation, log_rollout
from slime_swe.sample import Sample
from tests.embedded import scripted
from tests.embedded.conftest import tiny_checkpoint  # noqa: F401

PAGE = (Path(__file__).parents[2] / "docs" / "metrics.md").read_text(encoding="utf-8")
ROLLOUT, EVALUATION = PAGE.split("\n## An evaluation\n")
CELL = r"\s*((?:[^|\\]|\\\|)*?)\s*"
ROWS = re.findall(rf"^\| `([^`]+)` \|{CELL}\|{CELL}\| (yes|–) \| (`[^`]+`|–) \|$", ROLLOUT, re.MULTILINE)
IN_EMBEDDED = [name for name, _, _, embedded, _ in ROWS if embedded == "yes"]
IN_SLIME = {slimes.strip("`"): name for name, *_, slimes in ROWS if slimes != "–"}
OF_EVALUATIONS = re.findall(rf"^\| `([^`]+)` \|{CELL}\|{CELL}\|$", EVALUATION, re.MULTILINE)


async def generate(args, sample, sampling_params, evaluation=False):
    """With every kind of retry and failure in training; the first group breaks once as a whole."""
    sample = await scripted.generate(args, sample, sampling_params, evaluation)
    counters = {"prompt_tokens": 9, "cached_tokens": 3, "engine_retries": {"timeout": 1}, "tries": 2,
                "broken_attempts": {"sandbox_error": 1}}  # fmt: skip
    sample.metadata["episode"]["counters"] = counters
    if not evaluation:
        first_time = not args.played[sample.index]
        args.played[sample.index] += 1
        if sample.index == 5 or (sample.index < 4 and first_time):
            write_failure(sample, "sandbox_error", "gone")
    return sample


async def reward(args, sample):
    """The third group solves nothing."""
    value = await scripted.reward(args, sample)
    if 8 <= sample.index < 12 and not sample.metadata["episode"]["evaluation"]:
        value = -1.0
        sample.metadata["score"] |= {"value": value, "solved": False}
    sample.metadata["score"]["components"] = {"tests": value}
    evidence = {"oracle": "vulnerability", "pair": "p", "vulnerable": True, "said": True, "score_changed": True}
    sample.metadata["score"]["evidence"] = evidence
    return value


def unmatched(names: Iterable[str], rows: Iterable[str]) -> tuple[set[str], set[str]]:
    """Names that no row describes, and rows that describe no name; a word in capitals stands for any."""
    names, rows = set(names), set(rows)
    forms = {row: re.compile(re.sub(r"[A-Z]{2,}", r"[^/]+", row)) for row in rows}
    lost = {name for name in names if name not in rows and not any(f.fullmatch(name) for f in forms.values())}
    idle = {row for row, form in forms.items() if not any(form.fullmatch(name) for name in names)}
    return lost, idle


def flat(record: dict) -> set[str]:
    nested = {f"{key}/{name}" for key in ("seconds", "serving") for name in record.get(key, {})}
    return {name for name in record if name not in ("seconds", "serving")} | nested


def test_a_row_that_nothing_writes_and_a_figure_without_a_row_are_noticed():
    assert unmatched({"a", "b/x"}, {"a", "b/NAME"}) == (set(), set())
    assert unmatched({"a", "c"}, {"a", "b/NAME"}) == ({"c"}, {"b/NAME"})
    assert len(ROWS) > 50 and len(OF_EVALUATIONS) > 15
    assert len(ROWS) == len(re.findall(r"^\| `", ROLLOUT, re.MULTILINE))  # no row is left out for its form


@pytest.mark.slow
def test_the_page_has_what_the_embedded_engine_writes(tiny_checkpoint, tmp_path):  # noqa: F811
    with scripted.TinyEngine(tiny_checkpoint) as engine:
        args = scripted.make_args(
            tiny_checkpoint, tmp_path / "run", num_rollout=2, use_kl_loss=True, kl_loss_coef=0.01,
            custom_generate_function_path=f"{__name__}.generate", custom_rm_path=f"{__name__}.reward",
            **engine.address,
        )  # fmt: skip
        args.played = Counter()
        train(args, scripted.NoProgress())
    records = Journal(tmp_path / "run" / "metrics.jsonl").read()
    steps = set().union(*(flat(record) for record in records if record["kind"] == "train"))
    assert unmatched(steps, IN_EMBEDDED) == (set(), set())
    evaluations = set().union(*(record for record in records if record["kind"] == "eval"))
    assert unmatched(evaluations, [name for name, *_ in OF_EVALUATIONS]) == (set(), set())


def samples() -> list[Sample]:
    """Two groups of two episodes, one of which infrastructure broke."""
    made = []
    for index in range(4):
        sample = Sample(index=index, rollout_id=index, group_index=index // 2, status=Sample.Status.COMPLETED)
        sample.tokens, sample.response_length, sample.loss_mask = [1, 2, 3], 2, [1, 1]
        counters = {"prompt_tokens": 9, "engine_retries": {"timeout": 1}, "broken_attempts": {"agent_error": 1}}
        evidence = {"score_changed": True}
        score = {"value": 1.0, "solved": True, "components": {"tests": 1.0}, "evidence": evidence}
        sample.metadata, sample.reward = {"episode": {"patch": "", "counters": counters}, "score": score}, 1.0
        made.append(sample)
    write_failure(made[3], "grader_error", "gone")
    return made


def test_the_page_has_what_the_hooks_give_slime(tmp_path):
    args, logged, evaluated = Namespace(swe_run_dir=str(tmp_path), reward_key=None), {}, {}
    log_rollout(0, args, samples(), logged, 1.0)
    ours = [name for name in IN_SLIME if name.startswith("swe/")]
    assert unmatched(logged, ours) == (set(), set())
    assert all(IN_SLIME[name].rpartition("swe/")[2].endswith(name.removeprefix("swe/")) for name in ours)
    log_evaluation(0, args, {"heldout": {"samples": samples()}}, evaluated)
    assert unmatched((name.removeprefix("eval/heldout/") for name in evaluated), ours) == (set(), set())
    driver = Rollout(dropped=Counter(all_solved=1)).metrics()
    drivers = [name for name in IN_SLIME if name.startswith("rollout/")]
    assert unmatched({*driver, "rollout/requeued", "rollout/trained_tokens", GAP_BEFORE}, drivers) == (set(), set())


def test_trackers_of_the_embedded_engine_have_the_names_that_slimes_have():
    """But for seconds of phases, which SLiME divides otherwise."""
    record = {"kind": "train", "serving": {}, "seconds": {}}
    slimes = {name: slimes.strip("`") for name, *_, slimes in ROWS}
    expected = {}
    for value, name in enumerate(set(IN_EMBEDDED) - {"kind", "rollout_id", "attempt"}):
        heading, _, rest = name.partition("/")
        if heading in ("serving", "seconds"):
            record[heading][rest] = value
        else:
            record[name] = value
        same = slimes[name].startswith(("swe/", "train/", "rollout/"))
        expected[slimes[name] if same else f"swe/{name}"] = value
    assert figures_of(record) == expected
    evaluation = {"kind": "eval", "name": "a", "moment": "after", "rollout_id": 3, "solve_rate": 0.5, "reward": None,
                  "outcomes": {"t": [1]}, "interval": [0, 1], "pass_at_k": {"2": 0.75}, "seconds": {"total": 2.0},
                  "stop_reasons": {"gave_up": 1.0}}  # fmt: skip
    names = {"solve_rate": 0.5, "pass_at_k/2": 0.75, "stop/gave_up": 1.0, "seconds/total": 2.0}
    assert figures_of(evaluation) == {f"eval/a/swe/{name}": value for name, value in names.items()}


def test_the_page_has_slimes_own_names_of_what_is_read_back():
    own = {slimes: name for slimes, name in IN_SLIME.items() if slimes.startswith(("train/", "perf/"))}
    timed = {slimes: f"seconds/{name}" for slimes, name in run.TIMED.items()}
    assert own == run.TRAINED | timed | {run.GAP: "logprob_diff_mean", "train/kl_loss": "kl_loss"}
