"""Plans of whole recipes: what is refused and how it is said, what is proposed, and what the recipes' plans are."""

from __future__ import annotations

import math
import statistics
from argparse import Namespace
from dataclasses import replace

import pytest

from slime_swe.errors import UserError
from slime_swe.launch.config import assemble
from slime_swe.launch.engines import require_legal
from slime_swe.launch.plan import Assumptions, admission, assume, rollout, serving, simulation, training
from slime_swe.launch.plan.admission import sandboxes_at_once
from slime_swe.launch.plan.plan import fit, make_plan, propose
from slime_swe.launch.plan.problems import nearest
from slime_swe.launch.plan.simulation.machines import simulate
from slime_swe.launch.plan.timing import evaluations_of, time_step, with_outlook
from slime_swe.launch.slime.render import plugin_settings, shared
from slime_swe.recipes.forecast import CERTAINTY, NARROWER, WIDER, informative_share
from slime_swe.recipes.registry import RECIPES, load_recipe
from slime_swe.rollout.hooks import RolloutHooks
from slime_swe.rollout.play import Player
from slime_swe.rollout.scheduling.admission import Bounds

ON_GPUS = [name for name in RECIPES if load_recipe(name).engine == "slime"]
DENSE, LARGE, MIXTURE = "qwen25_coder_7b", "qwen25_coder_32b", "qwen3_coder_30b_a3b"
ASYNCHRONOUS = "qwen3_coder_30b_a3b_async"
USUAL = Assumptions(informative=0.4)  # whatever the recipes forecast
FEW = "rollout.sandbox_concurrency=96"  # leaves room in a machine's memory

pytestmark = pytest.mark.usefixtures("few_steps")


def plan(name, *overrides, **assumed):
    return make_plan(assemble(name, overrides), replace(USUAL, **assumed))


def sizes(name, *overrides):
    """The same without times: nothing is simulated for it."""
    return fit(assemble(name, overrides), USUAL)


def proposed(name, overrides):
    """The candidates that `propose` plans."""
    recipe = assemble(name, overrides)
    return nearest(recipe, USUAL, fit(recipe, USUAL).images, 3)


async def no_episode(args, sample, params):
    raise AssertionError("nothing is played")


def test_there_are_gpu_recipes():
    assert {"qwen25_coder_1_5b", DENSE, LARGE, MIXTURE} <= set(ON_GPUS)


@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe_is_legal_and_fits(name):
    assert fit(load_recipe(name)).problems == ()


REFUSED = {
    "heads that tp does not divide": (DENSE, ["parallel.tp=3"], "parallel.tp"),
    "layers that pp does not divide": (DENSE, ["parallel.pp=8"], "parallel.pp"),
    "more GPUs in a group than there are": (LARGE, ["cluster.nodes=1"], "parallel.tp"),
    "experts of a dense model": (DENSE, ["parallel.ep=8"], "parallel.ep"),
    "experts that ep does not divide": (MIXTURE, ["parallel.ep=3"], "parallel.ep"),
    "an episode longer than a micro-batch": (
        DENSE,
        ["parallel.max_tokens_per_gpu=4096"],
        "parallel.max_tokens_per_gpu",
    ),
    "a context that the model was not made for": (DENSE, ["rollout.max_context=65536"], "rollout.max_context"),
    "a step that copies can't share": (
        DENSE,
        ["rollout.batch_size=33", "rollout.samples_per_task=1", "parallel.cp=2", "parallel.max_tokens_per_gpu=16384"],
        "rollout.batch_size",
    ),
    "an unknown GPU": (DENSE, ["cluster.gpu=B200"], "cluster.gpu"),
    "engines that don't fill the GPUs": (DENSE, ["serving.gpus_per_engine=3"], "serving.gpus_per_engine"),
    "sampling ahead on the trainer's GPUs": (DENSE, ["rollout.schedule=async"], "rollout.schedule"),
    "optimizer states on one node": (
        LARGE,
        ["cluster.nodes=1", "parallel.cp=1", "parallel.max_tokens_per_gpu=32768", "parallel.recompute=full"],
        "optimizer.cpu_offload",
    ),
    "nothing recomputed": (
        LARGE,
        ["parallel.recompute=none", "parallel.cp=1", "parallel.max_tokens_per_gpu=32768"],
        "parallel.recompute",
    ),
    "selective recomputation": (
        LARGE,
        ["parallel.recompute=selective", "parallel.cp=1", "parallel.max_tokens_per_gpu=32768"],
        "parallel.recompute",
    ),
    "logits of long micro-batches": (
        "qwen25_coder_1_5b",
        ["parallel.max_tokens_per_gpu=131072", "parallel.recompute=full"],
        "parallel.max_tokens_per_gpu",
    ),
    "weights of 32 B on two GPUs a copy": (
        LARGE,
        ["parallel.tp=2", "parallel.cp=8", "parallel.max_tokens_per_gpu=4096"],
        "parallel.tp",
    ),
    "a small GPU": (
        DENSE,
        ["cluster.gpu=A100-40GB", "parallel.tp=1", "parallel.cp=8", "parallel.recompute=full"],
        "parallel.tp",
    ),
    "all memory for the server": (DENSE, ["serving.mem_fraction=0.97"], "serving.mem_fraction"),
    "no cache": (LARGE, ["serving.gpus_per_engine=1", "serving.mem_fraction=0.75"], "serving.mem_fraction"),
    "no cache at any share": (
        LARGE,
        ["serving.gpus_per_engine=1", "serving.mem_fraction=0.8"],
        "serving.gpus_per_engine",
    ),
    "a small machine": (MIXTURE, ["cluster.memory_per_node=640"], "cluster.memory_per_node"),
    "a small disk": (LARGE, ["cluster.disk_per_node=5300"], "cluster.disk_per_node"),
    "a large model on a laptop": (
        "tiny_cpu",
        ["model.config.hidden_size=4096", "model.config.num_hidden_layers=32", "model.config.intermediate_size=16384"],
        "cluster.memory_per_node",
    ),
}


@pytest.mark.parametrize(("name", "overrides", "field"), REFUSED.values(), ids=REFUSED)
def test_refused_with_the_field_and_a_fix(name, overrides, field):
    found = sizes(name, *overrides)
    assert not found.fits
    said = {problem.field: problem for problem in found.problems}
    assert field in said, found.problems
    key = field if field != "parallel.max_tokens_per_gpu" else "tokens"
    assert key.rsplit(".", 1)[-1] in str(said[field]) or "GiB" in said[field].message
    assert len(said[field].fix) > 3


def test_all_problems_are_named_not_the_first():
    fields = {
        problem.field
        for problem in sizes(MIXTURE, "parallel.tp=3", "parallel.ep=3", "serving.gpus_per_engine=3").problems
    }
    assert {"parallel.tp", "parallel.ep", "serving.gpus_per_engine"} <= fields


def test_a_layout_that_is_none_has_no_numbers():
    found = plan(DENSE, "parallel.tp=3")
    assert found.budgets == ()
    assert found.timing is None


def test_a_recipe_without_gpus_gets_a_short_answer():
    found = make_plan(load_recipe("tiny_cpu"))
    assert found.fits
    assert found.timing is None
    assert [budget.name for budget in found.budgets] == ["machine"]


# What is known to run, and not to


def test_32b_on_one_node_wants_its_optimizer_offloaded():
    one_node = ("cluster.nodes=1", "parallel.cp=1", "parallel.max_tokens_per_gpu=32768", "parallel.recompute=full", FEW)
    assert not sizes(LARGE, *one_node).fits
    assert sizes(LARGE, *one_node, "optimizer.cpu_offload=true").fits


def test_30b_a3b_as_in_slimes_own_script():
    """tp 4, ep 8, full recomputation, 20,480 tokens, CPU Adam, engines of 8 GPUs at 0.7: it is published as running on
    8 x H100."""
    script = ["parallel.cp=1", "parallel.max_tokens_per_gpu=20480", "rollout.max_context=20480"]
    script += ["serving.gpus_per_engine=8", "serving.ep=8", "serving.dp_attention=false", "serving.mem_fraction=0.7"]
    found = sizes(MIXTURE, *script)
    assert found.fits
    assert not sizes(MIXTURE, *script, "optimizer.cpu_offload=false").fits


# Proposals


@pytest.mark.parametrize(
    ("name", "overrides", "first"),
    [
        (
            LARGE,
            ["cluster.nodes=1", "parallel.cp=1", "parallel.max_tokens_per_gpu=32768", "parallel.recompute=full", FEW],
            {"optimizer.cpu_offload=true"},
        ),
        (DENSE, ["serving.mem_fraction=0.97"], {"serving.mem_fraction=0.85"}),
        (DENSE, ["parallel.tp=3"], {"parallel.tp=2"}),
    ],
)
def test_the_nearest_change_comes_first(name, overrides, first):
    assert set(proposed(name, overrides)[0].overrides) == first


@pytest.mark.slow
@pytest.mark.parametrize(("name", "overrides", "field"), REFUSED.values(), ids=REFUSED)
def test_proposals_run(name, overrides, field):
    for proposal in proposed(name, overrides):
        pasted = assemble(name, [*overrides, *proposal.overrides])
        require_legal(pasted)
        assert fit(pasted).fits


def test_nothing_is_proposed_for_what_fits_or_for_what_no_layout_cures():
    assert proposed(DENSE, []) == proposed(DENSE, ["cluster.gpu=B200"]) == []


LONG = [DENSE, "rollout.max_context=131072", "cluster.nodes=2", "cluster.gpu=A100-40GB"]


@pytest.mark.parametrize(
    ("name", "overrides"),
    [
        (LONG[0], LONG[1:]),
        (MIXTURE, LONG[1:]),
        (LARGE, ["cluster.nodes=1", "parallel.cp=1", "parallel.max_tokens_per_gpu=32768", "parallel.recompute=full"]),
        (DENSE, ["serving.mem_fraction=0.97", "parallel.max_tokens_per_gpu=8192"]),
    ],
)
def test_each_single_change_that_is_advised_helps_and_harms_nothing(name, overrides):
    """An advised change leaves one problem less and brings no other."""
    start = sizes(name, *overrides)
    advised = {problem.field: problem.fix.removeprefix("set ").split(" or ") for problem in start.problems}
    for field, choices in advised.items():
        for choice in choices:
            left = sizes(name, *overrides, choice).problems
            assert len(left) < len(start.problems) or field not in {problem.field for problem in left}, choice
            assert {problem.field for problem in left} <= set(advised), choice


def test_a_context_that_is_too_long_for_the_model_is_part_of_what_is_proposed():
    proposals = proposed(LONG[0], LONG[1:])
    assert proposals and all("rollout.max_context=32768" in proposal.overrides for proposal in proposals)


def test_where_nothing_runs_the_nearest_changes_come_with_what_they_leave():
    recipe = assemble(LARGE, ["cluster.memory_per_node=128", "parallel.tp=4"])
    (proposal,) = propose(fit(recipe, USUAL), recipe)
    assert proposal.overrides and [problem.field for problem in proposal.plan.problems] == ["cluster.memory_per_node"]


def test_the_price_of_a_gpu_hour_is_asked_for_where_it_is_missing():
    assert "GPU hours (for their cost give cluster.gpu_hour_price)" in " ".join(plan(DENSE).notes)
    assert "GPU hours (cost " in " ".join(plan(DENSE, "cluster.gpu_hour_price=2.5").notes)


# Time


def test_phases_add_up_to_a_step_or_overlap():
    timing = plan(DENSE).timing
    assert timing.seconds == timing.rollout_seconds + timing.training_seconds
    assert min(phase.seconds for phase in timing.rollout) >= 0
    ahead = plan(DENSE, "rollout.schedule=async", "cluster.colocate=false", "cluster.rollout_gpus=8").timing
    assert ahead.seconds == max(ahead.rollout_seconds, ahead.training_seconds)


def test_gpus_that_wait_for_others_beside_them_are_warned_of():
    apart = ["cluster.colocate=false", "cluster.rollout_gpus=8", "rollout.schedule=continuous"]

    def notes(*words, **assumed):
        made = plan(DENSE, *words, **assumed)
        return made.timing, [note for note in made.notes if "cluster.rollout_gpus" in note]

    timing, (warning,) = notes(*apart, "cluster.nodes=2")
    times, idle = timing.rollout_seconds / timing.training_seconds, 1 - timing.training_seconds / timing.seconds
    assert warning.startswith(f"warning: the rollout takes {times:.1f} times as long as the training")
    assert f"the 16 GPUs that train are idle for {idle:.0%} of a step: give some of them to the servers" in warning
    _, (note,) = notes(*apart)
    assert note.startswith("the rollout takes ") and note.count("with a larger cluster.rollout_gpus a step is shorter")
    timing, (warning,) = notes(*apart, mfu=0.008)
    assert timing.waits_for_training and warning.startswith("warning: the trainer is busy all the time")
    assert notes()[1] == [], "one after the other"


@pytest.mark.extended(
    "tests/launch/plan/test_plan.py::test_a_rollout_takes_as_long_as_in_the_simulation_of_its_schedule"
)
def test_larger_batches_fill_more_of_the_slots_and_win_little_time(monkeypatch):
    """As engines with more requests are slower at each."""
    monkeypatch.setattr(rollout, "MEASURED", 40)
    for name, filled in (("qwen3_5_9b", 0.05), (ASYNCHRONOUS, 0.04)):
        recipe = assemble(name)
        groups = math.ceil(1.25 * rollout.slots_of(recipe, Assumptions())[0] / recipe.rollout.samples_per_task)
        small, large = (
            time_step(assemble(name, words), Assumptions()) for words in ([], [f"rollout.batch_size={groups}"])
        )
        assert large.slot_use - small.slot_use == pytest.approx(filled, abs=0.01)
        assert 0.96 < (large.seconds / large.episodes) / (small.seconds / small.episodes) < 1


def test_cost_is_gpu_hours_times_their_price():
    timing = plan(DENSE, "cluster.gpu_hour_price=2.5").timing
    assert timing.cost == pytest.approx(8 * 2.5 * timing.seconds / 3600)
    assert plan(DENSE).timing.cost == 0


def test_training_time_follows_from_flops():
    timing = plan(DENSE, "parallel.recompute=full", mfu=0.5).timing
    model = load_recipe(DENSE).model.shape
    per_token = 8 * (model.parameters - model.vocab * model.hidden) + 8 * 28 * 28 * 128 * 16384
    assert timing.training[0].seconds == pytest.approx(timing.tokens * per_token / (8 * 989e12 * 0.5))


def test_the_reference_and_more_steps_cost_forward_passes():
    def forwards(*overrides):
        phases = {
            phase.name: phase.seconds for phase in plan(DENSE, "parallel.recompute=full", *overrides).timing.training
        }
        return phases["log-probabilities"] / phases["train"]

    assert forwards() == 0  # one step on a rollout: the training pass gives them
    assert forwards("algorithm.kl_coef=0.01") == pytest.approx(1 / 4)  # forward, again, and backward
    assert forwards("algorithm.kl_coef=0.01", "algorithm.steps_per_rollout=2") == pytest.approx(2 / 4)


def test_gspo_and_an_old_actor_cost_a_forward_pass_and_the_latter_two_more_copies():
    def cost(*overrides):
        found = plan(ASYNCHRONOUS, "cluster.memory_per_node=2048", *overrides)
        phases = {phase.name: phase.seconds for phase in found.timing.training}
        (copies,) = [part.bytes for part in found.budget("machine").components if part.name == "copies of the weights"]
        return phases["log-probabilities"] / phases["train"], copies

    (nothing, one), (passed, three) = cost(), cost("algorithm.keep_old_actor=true")
    assert (nothing, passed) == (0, pytest.approx(1 / 4))
    assert three == pytest.approx(3 * one)
    assert cost("algorithm.keep_old_actor=true", "algorithm.kl_coef=0.01") == (
        pytest.approx(2 / 4),
        pytest.approx(4 * one),
    )
    assert cost("algorithm.estimator=gspo", "algorithm.keep_old_actor=true") == (pytest.approx(1 / 4), three)


def test_what_holds_the_episodes_in_flight_is_named():
    def reason(*overrides):
        return time_step(assemble(DENSE, overrides), USUAL).rollout[0].detail

    assert "rollout.sandbox_concurrency" in reason("rollout.sandbox_concurrency=8")
    assert "serving.concurrency" in reason("serving.concurrency=2", "rollout.sandbox_concurrency=512")
    assert "rollout.batch_size" in reason(
        "rollout.batch_size=4", "rollout.samples_per_task=4", "rollout.sandbox_concurrency=512"
    )
    small = ["serving.mem_fraction=0.2", "serving.gpus_per_engine=4", "cluster.gpu=A100-40GB"]
    assert "KV cache" in reason(*small, "rollout.sandbox_concurrency=512")


@pytest.mark.parametrize("name", ON_GPUS)
def test_a_run_begins_with_as_many_episodes_as_the_caches_hold_by_the_plan(name, tmp_path):
    """By what the run's own player reads of SLiME's arguments, and the plan's simulation takes the same number."""
    recipe = load_recipe(name)
    assert recipe.serving.concurrency == 0
    args = Namespace(**shared(recipe, tmp_path)["serving"], **plugin_settings(recipe, tmp_path))
    args.rollout_num_gpus, args.rollout_num_gpus_per_engine = recipe.cluster.serve_gpus, recipe.serving.gpus_per_engine
    player = Player(args, RolloutHooks(no_episode, no_episode, None))
    length = recipe.forecast.context * recipe.rollout.max_context
    held = serving.engines(recipe) * serving.cache_tokens(recipe) / length
    held = min(held, serving.engines(recipe) * serving.running_requests(recipe))
    assert 0.9 * held <= player.slots <= 1.1 * held
    assert rollout.slots_of(recipe, Assumptions())[0] == min(player.slots, sandboxes_at_once(recipe))
    assert player.admission.bounds == admission.bounds_of(recipe)
    assert 0.5 * player.slots <= player.admission.bounds.least < player.slots < player.admission.bounds.most


def test_a_stated_concurrency_is_a_cap_and_no_more():
    few, many = (assemble(ASYNCHRONOUS, [f"serving.concurrency={count}"]) for count in (16, 128))
    assert admission.bounds_of(few) == Bounds(48, 96, 96)
    assert admission.bounds_of(many) == replace(admission.bounds_of(load_recipe(ASYNCHRONOUS)), most=768)
    (note,) = [note for note in plan(ASYNCHRONOUS, "serving.concurrency=128").notes if "cache holds" in note]
    assert "holds 35 episodes of that length, at most serving.concurrency=128 an engine: the run admits 212" in note


def test_more_episodes_are_admitted_where_they_are_assumed_to_be_shorter():
    recipe = load_recipe(ASYNCHRONOUS)
    short, usual = (admission.bounds_of(recipe, Assumptions(context=share)).start for share in (0.25, 0.5))
    assert short == pytest.approx(2 * usual, abs=1)


def test_what_external_engines_hold_is_not_known_and_without_gpus_nothing_adapts():
    recipe = assemble(DENSE, ["serving.external_engines=['10.0.0.1:30000']", "cluster.colocate=false"])
    assert admission.bounds_of(recipe) == Bounds(32, 64, 256)
    assert admission.bounds_of(load_recipe("tiny_cpu")) == Bounds(128, 128, 128)
    with pytest.raises(UserError, match=r"serving\.concurrency=0 is what the KV cache of GPUs holds"):
        require_legal(assemble("tiny_cpu", ["serving.concurrency=0"]))


TWIN = {
    "sync": (DENSE, "sync"),
    "carry": (DENSE, "carry"),
    "async": (ASYNCHRONOUS, "ahead"),
    "continuous": (ASYNCHRONOUS, "continuous"),
}


@pytest.mark.parametrize("schedule", TWIN)
def test_a_rollout_takes_as_long_as_in_the_simulation_of_its_schedule(schedule):
    """Of the schedulers themselves, as `benchmarks/rollout_schedule.py` simulates them."""
    name, driver = TWIN[schedule]
    timing = plan(name, f"rollout.schedule={schedule}").timing
    update = timing.training[-1].seconds
    recipe = assemble(name, [f"rollout.schedule={schedule}"])
    case = rollout.case_of(recipe, USUAL, timing.training_seconds - update, update)
    assert case.machines.token_seconds(40) > case.machines.token_seconds(1) > 0
    ledger = rollout.ledger_of(case)
    limit = (
        {"max_staleness": 2} if schedule in ("carry", "continuous") else {"max_over_sampling": recipe.max_over_sampling}
    )
    steps = rollout.WARM_UP + rollout.MEASURED

    async def twin():
        await getattr(simulation, driver)(ledger, recipe.rollout.batch_size, steps, **limit)
        return ledger.figures(0), rollout.found_in(ledger, case)

    figures, found = simulate(twin())
    step = (
        found.step + timing.training_seconds - case.machines.train - case.machines.update
    )  # of sync, where it is left out
    assert timing.seconds == pytest.approx(step)
    assert timing.slot_use == figures["slot_use"]
    assert len(ledger.trained) == steps * recipe.rollout.batch_size


def test_a_plan_is_quick():
    """Few steps are simulated, and turns together where there are many."""
    for batch in (32, 64, 256):
        recipe = assemble(DENSE, [f"rollout.batch_size={batch}"])
        case = rollout.case_of(recipe, USUAL, 100.0, 10.0)
        turns = statistics.mean(len(case.workload.script(group, 0, 0).turns) for group in range(100))
        episodes = batch * 8 / 0.4 * (rollout.WARM_UP + case.measured)
        assert episodes <= 1.6 * rollout.MOST_EPISODES
        assert episodes * turns <= max(1.3 * rollout.MOST_TURNS, 2 * episodes)


def test_episodes_are_as_long_as_assumed():
    """On average, although none is longer than the recipe allows."""
    case = rollout.case_of(load_recipe(DENSE), USUAL, 100.0, 10.0)
    apart = replace(case.workload, together=1)
    scripts = [apart.script(group, member, 0) for group in range(400) for member in range(8)]
    assert max(len(script.turns) for script in scripts) == 50
    assert statistics.mean(len(script.turns) for script in scripts) == pytest.approx(25, rel=0.05)
    assert statistics.mean(script.tokens for script in scripts) == pytest.approx(0.3 * 16384, rel=0.05)
    commands = [seconds for script in scripts for _, seconds in script.turns]
    assert statistics.mean(commands) == pytest.approx(2.0, rel=0.05)
    groups = [{script.solved for script in scripts[first : first + 8]} for first in range(0, len(scripts), 8)]
    assert statistics.mean(len(solved) == 2 for solved in groups) == pytest.approx(0.4, abs=0.06)


def test_a_context_that_is_full_ends_an_episode_before_max_turns_does():
    case = rollout.case_of(load_recipe(DENSE), Assumptions(context=0.8, turns=0.5), 100.0, 10.0)
    assert case.workload.most_turns == 31  # of 50, at 25 turns to 0.8 of the context


@pytest.mark.parametrize(
    "name", [DENSE, *(pytest.param(name, marks=pytest.mark.extended("recipes")) for name in ON_GPUS if name != DENSE)]
)
def test_more_machinery_and_a_shorter_tail_make_no_rollout_slower(name):
    """But for a tenth: where cores are what limits it, groups that are begun for the margin take some of them."""

    def seconds(*overrides):
        return time_step(assemble(name, overrides), USUAL).rollout_seconds

    more = [seconds(f"rollout.sandbox_concurrency={slots}", "serving.concurrency=256") for slots in (64, 128, 256)]
    assert more[1] <= 1.1 * more[0] and more[2] <= 1.1 * more[1]
    assert seconds("cluster.cpus_per_node=192") <= seconds("cluster.cpus_per_node=24")
    wide = ("rollout.sandbox_concurrency=256", "serving.concurrency=256", "cluster.cpus_per_node=192")
    case = rollout.case_of(assemble(name, wide), USUAL, 100.0, 10.0)
    even = replace(case, workload=replace(case.workload, turns_spread=0.1))
    assert rollout.simulated(even).slot_use > rollout.simulated(case).slot_use


@pytest.mark.parametrize(
    "name", [DENSE, *(pytest.param(name, marks=pytest.mark.extended("recipes")) for name in ON_GPUS if name != DENSE)]
)
def test_there_are_as_many_sandboxes_as_help(name):
    """Without a number in the recipe; not where the machine's memory has no room for more."""

    def seconds(count):
        recipe = assemble(name, [f"rollout.sandbox_concurrency={count}", "serving.concurrency=256"])
        return time_step(recipe, USUAL).seconds

    usual = sandboxes_at_once(assemble(name, ["rollout.sandbox_concurrency=0"]))
    assert seconds(0) <= 1.1 * min(seconds(round(share * usual)) for share in (1 / 2, 3 / 4, 3 / 2))


def test_schedules_that_wait_less_take_less_time():
    """For a long tail of episodes and as many slots as a batch has episodes."""
    wide = ["rollout.sandbox_concurrency=256", "serving.concurrency=256", "cluster.cpus_per_node=192"]
    sync, carry = (plan(DENSE, *wide, f"rollout.schedule={schedule}").timing for schedule in ("sync", "carry"))
    assert sync.seconds > 1.2 * carry.seconds
    assert sync.slot_use < carry.slot_use
    wide += ["cluster.colocate=false", "cluster.rollout_gpus=8"]
    ahead, continuous = (plan(DENSE, *wide, f"rollout.schedule={name}").timing for name in ("async", "continuous"))
    assert ahead.seconds > 1.2 * continuous.seconds
    assert carry.seconds > continuous.seconds
    assert continuous.overlap and continuous.seconds == continuous.rollout_seconds


def test_what_the_filter_drops_is_sampled_too():
    def rollout_seconds(*overrides, **assumed):
        return plan(DENSE, "rollout.sandbox_concurrency=64", *overrides, **assumed).timing.rollout_seconds

    everything = rollout_seconds("algorithm.group_filter=")
    assert rollout_seconds(informative=0.8) > everything
    assert rollout_seconds() > 1.4 * rollout_seconds(informative=0.8)


def test_groups_of_one_episode_are_not_filtered():
    alone = time_step(assemble(DENSE, ["rollout.samples_per_task=1"]), USUAL)
    assert 0 < alone.rollout_seconds < plan(DENSE).timing.rollout_seconds


def test_a_batch_that_is_never_full_is_the_users_to_mend():
    with pytest.raises(UserError, match="informative=VALUE, is too small: none of 50 groups"):
        plan(DENSE, "rollout.batch_size=1", "rollout.samples_per_task=8", informative=1e-6)


def test_a_trainer_that_is_waited_for_is_the_bottleneck():
    slow = plan(ASYNCHRONOUS, "rollout.schedule=continuous", "rollout.sandbox_concurrency=256", mfu=0.02)
    assert slow.timing.seconds == pytest.approx(slow.timing.training_seconds, rel=0.05)
    assert "time: train" in slow.bottlenecks[-1]


def test_slower_sandboxes_make_a_longer_rollout_and_bind():
    slow = plan(DENSE, turn_seconds=60.0)
    assert slow.timing.rollout_seconds > plan(DENSE).timing.rollout_seconds
    assert "sandboxes" in slow.bottlenecks[-1]


def test_too_few_cores_are_what_limits_a_rollout():
    few = plan(DENSE, "cluster.cpus_per_node=16", "rollout.sandbox_concurrency=64").timing
    assert "cluster.cpus_per_node" in few.limit
    assert " x for want of cores" in next(phase.detail for phase in few.rollout if phase.name == "sandboxes")


def test_sandboxes_on_all_nodes_have_their_processors_and_memory():
    four = ("rollout.sandbox_concurrency=256", "cluster.nodes=4", "cluster.cpus_per_node=8")
    four += ("cluster.disk_per_node=32768",)  # for images that are unpacked
    one_node, all_nodes = (plan(LARGE, *four, f"rollout.sandbox={name}") for name in ("overlay", "ray:overlay"))
    assert one_node.timing.rollout_seconds > all_nodes.timing.rollout_seconds

    def held(found):
        return next(part for part in found.budget("machine").components if part.name == "sandboxes").bytes

    assert held(one_node) == 4 * held(all_nodes) > 0


def test_routes_are_held_for_all_that_is_sampled_and_sent_whole_to_each_gpu():
    """48 layers send each token to 8 experts: 1,536 bytes. 256 episodes of 32,768 tokens on average are 12 GiB."""

    def held(*overrides):
        found = sizes(MIXTURE, "cluster.memory_per_node=4096", *overrides)
        return next(part for part in found.budget("machine").components if part.name == "routes").bytes / 2**30

    batch = 12.0
    assert held() == pytest.approx(batch + 8 * batch)  # one copy of the model, and 30 GiB while it samples
    two = ("cluster.nodes=2", "parallel.tp=4", "parallel.cp=2")
    assert held(*two) == pytest.approx(batch + 8 * batch / 2)
    apart = ("cluster.colocate=false", "cluster.rollout_gpus=8", "rollout.schedule=async")
    assert held(*apart) == pytest.approx(batch / 0.4 + batch + 8 * batch)
    assert held("algorithm.routing_replay=none") == 0


def test_weights_of_a_pipeline_and_its_last_stage():
    found = sizes(LARGE, "parallel.tp=4", "parallel.pp=2")
    assert found.budget("training").name.startswith("training, stage")


def test_external_engines_are_not_planned_for():
    recipe = assemble(DENSE, ["serving.external_engines=['10.0.0.1:30000']", "cluster.colocate=false"])
    found = fit(recipe)
    assert {budget.name for budget in found.budgets} == {"training", "machine", "disk"}


def test_checkpoints_and_exports_that_lie_there_at_once_are_counted():
    """Those that stay and one more; a few rollouts write fewer. One checkpoint of a 32B model takes 427 GiB."""

    def disk(*overrides):
        found = sizes(LARGE, *overrides)
        return {part.name: part.bytes for part in found.budget("disk").components}, found

    usual, _ = disk()
    one = usual["checkpoints"] / 3
    assert one == training.checkpoint_bytes(load_recipe(LARGE))
    assert usual["exports"] == 3 / 2 * usual["model"]
    assert disk("run.num_rollouts=20", "run.save_every_minutes=0")[0]["checkpoints"] == one
    assert disk("slime.flags.async-save=true")[0]["checkpoints"] == 4 * one
    everything, found = disk("run.keep_checkpoints=0", "run.save_every_minutes=0")
    assert everything["checkpoints"] == 10 * one
    assert disk("run.keep_checkpoints=0")[0]["checkpoints"] == 200 * one, "by time there may be one of each rollout"
    assert disk("run.keep_best=verified")[0]["checkpoints"] == 4 * one
    (problem,) = found.problems
    assert problem.field == "cluster.disk_per_node" and "lower run.keep_checkpoints" in problem.fix


SOME = (DENSE, LARGE, MIXTURE, ASYNCHRONOUS, "qwen3_5_9b")


@pytest.mark.parametrize(
    "name",
    [*SOME, *(pytest.param(name, marks=pytest.mark.extended("recipes")) for name in ON_GPUS if name not in SOME)],
)
def test_no_recipe_has_more_than_an_hour_between_checkpoints(name):
    recipe = load_recipe(name)
    found = make_plan(recipe)
    assert found.checkpoints.seconds <= 3600 and not found.checkpoints.rare
    assert found.checkpoints.rollouts == 1 or found.checkpoints.seconds <= 60 * recipe.run.save_every_minutes
    assert not any(note.startswith("warning: ") for note in found.notes)


def test_rollouts_between_checkpoints_are_those_of_the_interval_that_comes_first():
    step = plan(DENSE).timing.seconds
    for minutes, interval, rollouts in ((0, 20, 20), (0, 500, 200), (3.5, 20, 3), (3.5, 2, 2), (0.1, 20, 1)):
        given = f"run.save_every_minutes={minutes * step / 60}", f"run.save_interval={interval}"
        found = plan(DENSE, *given).checkpoints
        assert (found.rollouts, found.seconds) == (rollouts, rollouts * step)
        assert found.lost == rollouts * step


def test_what_is_sampled_ahead_and_an_unfinished_save_are_lost_too():
    step, one = plan(ASYNCHRONOUS).timing.seconds, "run.save_interval=1"
    assert plan(ASYNCHRONOUS, one).checkpoints.lost == 2 * step
    assert plan(ASYNCHRONOUS, one, "slime.flags.async-save=true").checkpoints.lost == 3 * step
    adapters = plan(MIXTURE, "engine=miles", "algorithm.lora_rank=16")
    assert adapters.checkpoints is None or adapters.checkpoints.rollouts == 20, "no adapter is resumed"


def test_rare_checkpoints_are_warned_of_and_how_much_a_kill_loses_is_said():
    found = plan(MIXTURE, "run.save_every_minutes=0")
    assert found.checkpoints.rare and found.fits
    notes = [*found.notes]
    (said,) = (note for note in notes if note.startswith("a checkpoint after 20 rollouts: "))
    hours = 20 * found.timing.seconds / 3600
    assert said.endswith(f"{hours:.1f} hours from one to the next, and a kill loses at most {hours:.1f} hours of work")
    assert notes[notes.index(said) + 1].startswith(
        "warning: more than an hour lies between two checkpoints: lower run."
    )


def test_flags_that_are_passed_on_are_named():
    found = plan(DENSE, "slime.flags={router-policy: manual, sglang-kv-cache-dtype: fp8_e4m3}")
    assert any("slime.flags (router-policy, sglang-kv-cache-dtype)" in note for note in found.notes)


@pytest.mark.parametrize("name", ON_GPUS)
def test_a_recipe_recomputes_what_it_must_and_no_more(name):
    """Nothing where all activations fit and half as many again: for a published run with Transformer Engine the formula
    is right (docs/planner.md), but Megatron's own modules keep more (benchmarks.megatron_memory --recompute none)."""
    recipe = load_recipe(name)
    training = sizes(name, "parallel.recompute=none", "optimizer.cpu_offload=false").budget("training")
    kept = next(part.bytes for part in training.components if part.name == "activations")
    room = (1 - Assumptions().margin) * training.capacity - training.bytes - kept / 2
    assert recipe.parallel.recompute == ("none" if room > 0 else "full")


# Assumptions


def test_assumptions_are_read_and_used():
    assumed = assume(["context=0.25", "turn_seconds=5"])
    assert (assumed.context, assumed.turn_seconds) == (0.25, 5)
    assert (
        make_plan(load_recipe(DENSE), replace(assumed, informative=0.4)).timing.tokens == plan(DENSE).timing.tokens / 2
    )


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("contxt=1", "'contxt'"),
        ("context=much", "'much'"),
        ("context", "''"),
        ("context=-1", "'-1'"),
        ("context=nan", "'nan'"),
        ("turn_seconds=0", "more than 0"),
        ("informative=1.5", "at most 1"),
    ],
)
def test_assumptions_that_are_none(word, said):
    with pytest.raises(UserError, match=said):
        assume([word])


def test_less_margin_fits_more():
    recipe = load_recipe(DENSE)
    tight = replace(recipe, serving=replace(recipe.serving, mem_fraction=0.88))
    assert not fit(tight).fits
    assert fit(tight, Assumptions(margin=0.0)).fits


# The whole run


def test_the_untrained_policy_sets_the_share_of_groups_and_its_bounds():
    """DeepSWE's pass@1 of 42.2 % and pass@16 of 71.0 % lie between the spreads that are taken for bounds."""
    shares = load_recipe(LARGE).informative
    assert 0.05 < shares.low < shares.expected < shares.high < 0.16
    assert informative_share(0.48, CERTAINTY, 8) == pytest.approx(0.4, abs=0.02)
    for certainty, more in ((WIDER, False), (NARROWER, True)):
        unsolved = math.prod((certainty * (1 - 0.422) + number) / (certainty + number) for number in range(16))
        assert (1 - unsolved > 0.71) == more


def test_a_forecast_is_what_a_plan_and_a_run_count_with_unless_it_is_assumed_otherwise(tmp_path):
    named = ("forecast.context=0.25", "forecast.sampled=0.6", "forecast.turns=0.2", "forecast.solved=0.9")
    recipe = assemble(DENSE, named)
    assert admission.episodes_of(recipe, Assumptions()) == admission.Episodes(8192, 0.6 * 8192, 10)
    assert admission.informative(recipe, Assumptions()) == recipe.informative.expected
    assert admission.informative(recipe, USUAL) == 0.4
    assert admission.episodes_of(recipe, Assumptions(context=0.5, turns=0.5)).length == 16384
    given, usual = (plugin_settings(each, tmp_path) for each in (recipe, load_recipe(DENSE)))
    assert given["swe_cached_episodes"] == 2 * usual["swe_cached_episodes"]
    assert given["swe_max_over_sampling"] == 2 / recipe.informative.expected < usual["swe_max_over_sampling"]


@pytest.mark.parametrize(
    ("name", "overrides", "count", "episodes"),
    [
        (DENSE, [], 11, 500),  # before the first rollout, and after each twentieth
        (DENSE, ["run.eval_interval=0"], 2, 500),
        (DENSE, ["run.eval_interval=150", "data.eval_samples_per_task=4"], 2, 2000),
        (DENSE, ["run.num_rollouts=0"], 1, 500),  # nothing but the evaluation
        (DENSE, ["data.eval={a: 'swebench:verified?limit=20', b: 'swebench:lite'}"], 11, 320),
        (ASYNCHRONOUS, [], 11, 500),  # the same
    ],
)
def test_evaluations_are_those_of_the_train_loop(name, overrides, count, episodes):
    found = evaluations_of(assemble(name, overrides), USUAL)
    assert (found.count, found.episodes, found.uncounted) == (count, episodes, ())
    assert found.seconds > 0


def test_a_run_is_its_steps_and_the_evaluations_that_all_gpus_wait_for():
    found = plan(DENSE)
    seconds = 200 * found.timing.seconds + 11 * found.evaluations.seconds
    assert found.run.hours == pytest.approx(seconds / 3600)
    assert found.run.gpu_hours == pytest.approx(8 * found.run.hours)
    assert any(note.startswith("11 evaluations of 500 episodes, for which training waits: ") for note in found.notes)
    without = plan(DENSE, "data.eval={}")
    assert without.evaluations is None and without.run.hours == pytest.approx(200 * without.timing.seconds / 3600)


def test_an_evaluation_takes_longer_with_more_episodes_and_fewer_slots():
    def seconds(episodes, *overrides):
        return rollout.evaluation_seconds(assemble(DENSE, overrides), USUAL, episodes)

    assert seconds(500) < seconds(1000)
    assert seconds(500) < seconds(500, "rollout.sandbox_concurrency=48")


def test_evaluation_sets_of_unknown_size_are_named():
    found = plan(DENSE, "data.eval={mine: my_module.load:all, verified: 'swebench:verified'}")
    assert (found.evaluations.episodes, found.evaluations.uncounted) == (500, ("mine",))
    assert any("nobody knows how many tasks mine of data.eval has" in note for note in found.notes)


def test_an_outlook_has_the_bounds_of_the_forecast_and_what_carry_saves():
    recipe = assemble(MIXTURE, [])
    found = with_outlook(make_plan(recipe), recipe)
    low, high, carry = found.outlook.low, found.outlook.high, found.outlook.carry
    assert (low.informative, found.run.informative, high.informative) == recipe.informative
    assert low.gpu_hours > found.run.gpu_hours > high.gpu_hours > 0
    assert carry.gpu_hours < found.run.gpu_hours and carry.informative == found.run.informative


def test_an_outlook_has_no_bounds_of_what_is_assumed_and_no_carry_where_it_can_not_be():
    recipe = load_recipe(DENSE)
    assert with_outlook(make_plan(recipe, USUAL), recipe).outlook.low is None
    apart = load_recipe(ASYNCHRONOUS)
    assert with_outlook(make_plan(apart, USUAL), apart).outlook.carry is None
    own = assemble(DENSE, ["rollout.generate=my_module.generate"])
    assert with_outlook(make_plan(own, USUAL), own).outlook.carry is None
    tiny = load_recipe("tiny_cpu")
    assert with_outlook(make_plan(tiny), tiny).outlook is None


def test_a_few_batches_with_luck_take_as_long_as_usual_ones():
    """With each seed other groups are informative, so that a batch of 16 needs a quarter more or fewer of them."""
    case = rollout.case_of(load_recipe(LARGE), Assumptions(), 0.0, 0.0)
    case = replace(case, batch_size=16, warm_up=0, measured=1, slots=64)
    found = [rollout.simulated(replace(case, workload=replace(case.workload, seed=seed))).step for seed in range(4)]
    assert max(found) < 1.2 * min(found)
