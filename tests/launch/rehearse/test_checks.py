"""Each fault that a rehearsal is for, planted into what one leaves behind, is found by the check of its name."""

from __future__ import annotations

import itertools
import json
import math
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from slime_swe.launch.rehearse.checks import CHECKS, run_check, run_checks, worst
from slime_swe.launch.rehearse.evidence import Evidence, Reference
from tests.launch.rehearse.small import play

FAULTS: dict[str, tuple[Callable[[Evidence, Path], Evidence], str]] = {}


def fault(check: str):
    """Of this check; the function's name says what is wrong."""

    def note(plant):
        FAULTS[plant.__name__] = plant, check
        return plant

    return note


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    return play(tmp_path_factory.mktemp("rehearsal"))


def test_a_sound_rehearsal_passes_every_check(sound):
    found = {check.name: check for check in run_checks(sound)}
    assert found.keys() == CHECKS.keys()
    assert {name: check.value for name, check in found.items() if check.ok is not True} == {}


def served(evidence: Evidence, rollout: int, model: Reference, temperature: float = 1.0) -> Evidence:
    """With the log-probabilities that a server of this model would have given in one rollout."""

    def again(sample):
        found = model.forward(sample.tokens, temperature).log_probs_T[-sample.length :].tolist()
        return replace(sample, log_probs_R=[value * bit for value, bit in zip(found, sample.mask_R, strict=True)])

    return with_rollout(evidence, rollout, [again(sample) for sample in evidence.rollouts[rollout]])


def with_rollout(evidence: Evidence, rollout: int, samples) -> Evidence:
    kept = [samples if number == rollout else one for number, one in enumerate(evidence.rollouts)]
    return replace(evidence, rollouts=kept)


def with_step(evidence: Evidence, number: int, **changes) -> Evidence:
    layout = evidence.layout
    step = replace(layout.steps[number], **changes)
    return replace(evidence, layout=replace(layout, steps={**layout.steps, number: step}))


def with_sample(evidence: Evidence, number: int, place: int, **changes) -> Evidence:
    samples = [*evidence.layout.steps[number].samples]
    samples[place] = replace(samples[place], **changes)
    return with_step(evidence, number, samples=samples)


def changed_folder(source: Path, target: Path, change) -> Path:
    """A copy of a Hugging Face folder with other tensors."""
    shutil.copytree(source, target)
    (file,) = target.glob("*.safetensors")
    tensors = load_file(file)
    change(tensors)
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, file, metadata={"format": "pt"})
    return target


def changed_config(evidence: Evidence, folder: Path, **changes) -> Reference:
    shutil.copytree(evidence.toy, folder)
    config = json.loads((folder / "config.json").read_text()) | changes
    (folder / "config.json").write_text(json.dumps(config))
    return Reference(config, folder)


@fault("log_probabilities")
def wrong_rope_base(evidence, folder):
    parameters = {**evidence.config["rope_parameters"], "rope_theta": 10000.0}
    return served(evidence, 0, changed_config(evidence, folder / "a", rope_parameters=parameters, rope_theta=10000.0))


@fault("log_probabilities")
def another_temperature(evidence, folder):
    return served(evidence, 0, Reference(evidence.config, evidence.toy), temperature=0.9)


@fault("served_weights")
def one_layer_is_not_updated(evidence, folder):
    old = load_file(evidence.toy / "model.safetensors")

    def keep(tensors):
        tensors |= {name: tensor for name, tensor in old.items() if ".layers.1." in name}

    stale = changed_folder(evidence.weights_of(2), folder / "a", keep)
    return served(evidence, 1, Reference(evidence.config, stale))


@fault("weight_versions")
def a_stale_weight_version(evidence, folder):
    def older(sample):
        return replace(sample, spans=tuple((version and "1", count) for version, count in sample.spans))

    return with_rollout(evidence, 2, [older(sample) for sample in evidence.rollouts[2]])


@fault("layout_log_probabilities")
def context_parallel_halves_are_exchanged(evidence, folder):
    found = evidence.layout.steps[0].samples[0].log_probs_R
    return with_sample(evidence, 0, 0, log_probs_R=found.roll(len(found) // 2))


@fault("layout_loss")
def a_rank_s_loss_is_counted_twice(evidence, folder):
    return with_figures(evidence, "train/loss", 1, 2.0)


@fault("layout_gradient_norm")
def gradients_of_a_rank_are_not_added(evidence, folder):
    return with_figures(evidence, "train/grad_norm", 0, 0.5)


def with_figures(evidence, tag, step, factor):
    layout = evidence.layout
    values = {**layout.figures[tag], step: layout.figures[tag][step] * factor}
    return replace(evidence, layout=replace(layout, figures={**layout.figures, tag: values}))


@fault("layout_weights")
def norms_are_trained_on_one_rank_s_tokens(evidence, folder):
    before = load_file(evidence.toy / "model.safetensors")

    def halve(tensors):
        for name in [name for name in tensors if "layernorm" in name]:
            tensors[name] = (tensors[name].float() + before[name].float()) / 2

    return with_export(evidence, 0, changed_folder(evidence.layout.exports[0], folder / "a", halve))


NAN = float("nan")


@fault("loss")
def a_later_loss_is_no_number(evidence, folder):
    return with_figures(evidence, "train/pg_loss", 2, NAN)


@fault("layout_loss")
def a_later_loss_of_the_layout_is_no_number(evidence, folder):
    return with_figures(evidence, "train/loss", 2, NAN)


@fault("layout_gradient_norm")
def a_later_gradient_norm_is_no_number(evidence, folder):
    return with_figures(evidence, "train/grad_norm", 1, NAN)


@fault("log_probabilities")
def the_server_s_later_log_probabilities_are_no_numbers(evidence, folder):
    return with_rolled_log_probs(evidence, 1)


@fault("served_weights")
def a_later_version_s_log_probabilities_are_no_numbers(evidence, folder):
    return with_rolled_log_probs(evidence, 1)


def with_rolled_log_probs(evidence, rollout):
    samples = [replace(sample, log_probs_R=[NAN] * sample.length) for sample in evidence.rollouts[rollout]]
    return with_rollout(evidence, rollout, samples)


@fault("layout_log_probabilities")
def a_later_step_s_log_probabilities_are_no_numbers(evidence, folder):
    found = evidence.layout.steps[1].samples[0].log_probs_R
    return with_sample(evidence, 1, 0, log_probs_R=torch.full_like(found, NAN))


@fault("advantages")
def a_later_advantage_is_no_number(evidence, folder):
    found = evidence.layout.steps[1].samples[0].advantages_R
    return with_sample(evidence, 1, 0, advantages_R=torch.full_like(found, NAN))


@fault("rewards")
def a_later_reward_is_no_number(evidence, folder):
    first, *others = evidence.rollouts[1]
    return with_rollout(evidence, 1, [replace(first, reward=NAN), *others])


@fault("moved_weights")
def a_layer_becomes_no_numbers(evidence, folder):
    return with_export(evidence, 2, layer_of_nan(evidence.layout.exports[2], folder / "a"))


@fault("layout_weights")
def a_layer_s_weights_are_no_numbers(evidence, folder):
    return with_export(evidence, 0, layer_of_nan(evidence.layout.exports[0], folder / "a"))


@fault("resume_weights")
def a_resumed_layer_is_no_numbers(evidence, folder):
    broken = layer_of_nan(evidence.resumed.exports[2], folder / "a")
    return replace(evidence, resumed=replace(evidence.resumed, exports={2: broken}))


def layer_of_nan(export, folder):
    def fill(tensors):
        tensors |= {name: torch.full_like(tensors[name], NAN) for name in tensors if ".layers.0.self_attn" in name}

    return changed_folder(export, folder, fill)


@pytest.mark.parametrize("values", list(itertools.permutations([1.0, NAN, 2.0])))
def test_what_is_no_number_is_the_worst_wherever_it_stands(values):
    assert math.isnan(worst(values))


def test_the_worst_of_none_is_no_pass():
    assert worst([]) == math.inf and worst([1.0, 2.0]) == 2.0


def with_export(evidence, number, path):
    layout = evidence.layout
    return replace(evidence, layout=replace(layout, exports={**layout.exports, number: path}))


@fault("moved_weights")
def a_layer_is_not_trained(evidence, folder):
    before = load_file(evidence.toy / "model.safetensors")

    def keep(tensors):
        tensors |= {name: tensor for name, tensor in before.items() if ".layers.0.self_attn" in name}

    return with_export(evidence, 2, changed_folder(evidence.layout.exports[2], folder / "a", keep))


@fault("experts")
def experts_are_shifted_by_one_row(evidence, folder):
    shifted = [replace(sample, experts=sample.experts.roll(1, 0)) for sample in evidence.rollouts[0]]
    return with_rollout(evidence, 0, shifted)


@fault("routing_replay")
def the_router_drops_the_experts(evidence, folder):
    return with_rollout(evidence, 1, [replace(sample, experts=None) for sample in evidence.rollouts[1]])


@fault("routing_replay")
def no_log_says_that_the_trainer_replays(evidence, folder):
    return replace(evidence, layout=replace(evidence.layout, arguments={}))


@fault("rewards")
def the_reward_of_another_episode(evidence, folder):
    samples = [*evidence.rollouts[0]]
    one, other = siblings(evidence)
    samples[one] = replace(samples[one], reward=samples[other].reward)
    return with_rollout(evidence, 0, samples)


def siblings(evidence):
    """Places of two samples of a group with different rewards."""
    pairs = itertools.combinations(enumerate(evidence.rollouts[0]), 2)
    return next((i, j) for (i, one), (j, other) in pairs if one.group == other.group and one.reward != other.reward)


@fault("advantages")
def the_advantages_of_a_sibling(evidence, folder):
    samples = evidence.layout.steps[0].samples
    one, other = siblings(evidence)
    advantages = torch.full_like(samples[one].advantages_R, float(samples[other].advantages_R[0]))
    return with_sample(evidence, 0, one, advantages_R=advantages)


@fault("masks")
def masks_are_shifted_by_one(evidence, folder):
    mask = evidence.layout.steps[0].samples[0].mask_R
    return with_sample(evidence, 0, 0, mask_R=[*mask[1:], 0])


@fault("denominators")
def the_denominator_of_a_micro_batch(evidence, folder):
    step = evidence.layout.steps[0]
    half = sum(one.mask_sum for one in step.samples[:2])
    return with_step(evidence, 0, samples=[replace(one, mask_sum=half) for one in step.samples])


@fault("denominators")
def a_sample_is_in_two_micro_batches(evidence, folder):
    (shard,) = evidence.layout.steps[0].shards
    return with_step(evidence, 0, shards=[replace(shard, micro_batches=[[0, 1], [1, 2, 3, 4, 5]])])


@fault("loss")
def tokens_weigh_as_their_episodes_do(evidence, folder):
    algorithm = replace(evidence.recipe.algorithm, reduction="trajectory")
    return replace(evidence, recipe=replace(evidence.recipe, algorithm=algorithm))


@fault("loss")
def a_loss_is_halved(evidence, folder):
    return with_figures(evidence, "train/pg_loss", 0, 0.5)


@fault("loss")
def a_loss_is_doubled(evidence, folder):
    return with_figures(evidence, "train/pg_loss", 2, 2.0)


@fault("loss")
def all_figures_of_a_step_are_halved(evidence, folder):
    """By episodes the loss itself is all but 0, and half of it too."""
    algorithm = replace(evidence.recipe.algorithm, reduction="trajectory")
    evidence = replace(evidence, recipe=replace(evidence.recipe, algorithm=algorithm))
    for number in evidence.layout.steps:
        evidence = reported_by_episodes(evidence, number)
    assert run_check("loss", evidence).ok
    for tag in ("train/pg_loss", "train/train_rollout_logprob_abs_diff"):
        evidence = with_figures(evidence, tag, 1, 0.5)
    return evidence


def reported_by_episodes(evidence, number):
    """With the figures of a step whose tokens weigh as their episodes do, of which each is one sample here."""
    samples = evidence.layout.steps[number].samples
    gaps = [one.log_probs_R - one.rollout_log_probs_R for one in samples]
    masks = [torch.tensor(one.mask_R, dtype=torch.float32) for one in samples]
    weights = [mask / mask.sum() / len(samples) for mask in masks]
    terms = [-one.advantages_R * gap.exp().clamp(0, 2) for one, gap in zip(samples, gaps, strict=True)]
    loss, apart = (
        sum(float((value * weight).sum()) for value, weight in zip(values, weights, strict=True))
        for values in (terms, [gap.abs() for gap in gaps])
    )
    layout = evidence.layout
    figures = {"train/pg_loss": loss, "train/train_rollout_logprob_abs_diff": apart}
    changed = {tag: {**layout.figures[tag], number: value} for tag, value in figures.items()}
    return replace(evidence, layout=replace(layout, figures={**layout.figures, **changed}))


@fault("layout_loss")
def one_rank_s_loss_is_halved(evidence, folder):
    return with_figures(evidence, "train/loss", 2, 0.5)


@fault("arguments")
def a_flag_is_lost_in_rendering(evidence, folder):
    held = {**evidence.layout.arguments, "rotary_base": "10000"}  # Megatron's default
    return replace(evidence, layout=replace(evidence.layout, arguments=held))


@fault("end_tokens")
def another_end_of_sequence(evidence, folder):
    toy = changed_folder(evidence.toy, folder / "a", lambda tensors: None)
    for name in ("config.json", "generation_config.json"):
        (toy / name).write_text(json.dumps({**json.loads((toy / name).read_text()), "eos_token_id": 1024}))
    return replace(evidence, toy=toy)


@fault("vocabulary")
def the_vocabulary_is_padded(evidence, folder):
    return replace(evidence, asked={**evidence.asked, "make_vocab_size_divisible_by": 128})


@fault("conversion")
def slices_of_tensor_parallel_ranks_are_exchanged(evidence, folder):
    def exchange(tensors):
        name = "model.layers.0.self_attn.q_proj.weight"
        tensors[name] = torch.cat([*reversed(tensors[name].chunk(2))])

    return replace(evidence, converted=changed_folder(evidence.converted, folder / "a", exchange))


@fault("export")
def an_export_of_the_step_before(evidence, folder):
    return with_export(evidence, 2, evidence.layout.exports[1])


@fault("resume_log_probabilities")
def a_resumed_run_has_the_first_weights(evidence, folder):
    first = evidence.layout.steps[2].samples
    others = [replace(one, log_probs_R=one.log_probs_R - 1e-3) for one in first]
    step = replace(evidence.resumed.steps[2], samples=others)
    return replace(evidence, resumed=replace(evidence.resumed, steps={2: step}))


@fault("resume_weights")
def a_resumed_run_has_lost_the_optimizer_s_states(evidence, folder):
    return replace(evidence, resumed=replace(evidence.resumed, exports={2: evidence.layout.exports[1]}))


@fault("resume_steps")
def a_resumed_step_is_counted_twice(evidence, folder):
    figures = {"train/loss": {1: 0.1, 2: 0.1}}
    return replace(evidence, resumed=replace(evidence.resumed, figures=figures))


@fault("resume_steps")
def a_resumed_run_makes_one_of_two_steps(evidence, folder):
    return two_steps_a_rollout(evidence, {4: 0.1})


def two_steps_a_rollout(evidence, losses):
    algorithm = replace(evidence.recipe.algorithm, steps_per_rollout=2)
    resumed = replace(evidence.resumed, figures={"train/loss": losses})
    return replace(evidence, recipe=replace(evidence.recipe, algorithm=algorithm), resumed=resumed)


def test_a_resumed_rollout_of_two_steps_is_sound(sound):
    assert run_check("resume_steps", two_steps_a_rollout(sound, {4: 0.1, 5: 0.1})).ok


@fault("memory")
def a_rank_holds_all_experts(evidence, folder):
    whole = sum(tensor.numel() for tensor in load_file(evidence.toy / "model.safetensors").values())
    counted = {**evidence.layout.parameters, (1, 0): whole}
    return replace(evidence, layout=replace(evidence.layout, parameters=counted))


def test_a_rank_that_nothing_counts_is_no_pass(sound):
    counted = {rank: count for rank, count in sound.layout.parameters.items() if rank != (1, 0)}
    assert run_check("memory", replace(sound, layout=replace(sound.layout, parameters=counted))).ok is False


def test_a_log_that_holds_no_arguments_is_no_pass(sound):
    """As of a Megatron that prints them in another form."""
    found = run_check("arguments", replace(sound, layout=replace(sound.layout, arguments={})))
    assert found.ok is False and "no table of its arguments" in found.look_at


@pytest.mark.parametrize("version", ["default", "9"])
@pytest.mark.parametrize("check", ["weight_versions", "served_weights", "experts"])
def test_a_version_that_the_run_has_not_is_found(sound, version, check):
    """`default` is SGLang's, of weights that no trainer has sent."""

    def named(sample):
        return replace(sample, spans=tuple((was and version, count) for was, count in sample.spans))

    found = run_check(check, with_rollout(sound, 1, [named(sample) for sample in sound.rollouts[1]]))
    assert found.ok is False and "Error" not in found.look_at, found


@pytest.mark.parametrize(
    "check", ["denominators", "masks", "advantages", "log_probabilities", "layout_log_probabilities"]
)
def test_a_sample_that_the_trainer_drops_is_found(sound, check):
    found = run_check(check, with_step(sound, 0, samples=sound.layout.steps[0].samples[:-1]))
    assert found.ok is False and "Error" not in found.look_at, found


def test_a_check_that_ends_in_an_error_has_failed_and_the_others_are_made(sound, tmp_path):
    """An export is missing, and a sample has other log-probabilities than tokens."""
    exports = {number: path for number, path in sound.layout.exports.items() if number != 2}
    layout = replace(sound.layout, exports=exports)
    short = replace(layout.steps[0].samples[0], log_probs_R=torch.zeros(3))
    first = replace(layout.steps[0], samples=[short, *layout.steps[0].samples[1:]])
    found = {
        check.name: check
        for check in run_checks(
            replace(sound, layout=replace(layout, steps={**layout.steps, 0: first}), saved=tmp_path / "nowhere")
        )
    }
    assert found.keys() == CHECKS.keys()
    for name, error in (("moved_weights", "KeyError: 2"), ("export", "KeyError: 2"), ("log_probabilities", "Error")):
        assert found[name].ok is False and error in found[name].look_at, found[name]
    assert {found[name].ok for name in ("masks", "rewards", "experts", "served_weights", "memory")} == {True}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_found(sound, tmp_path, name):
    plant, check = FAULTS[name]
    found = run_check(check, plant(sound, tmp_path))
    assert found.ok is False, found
    assert found.look_at
