"""What a rehearsal left behind, read once: the checks look at nothing else."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from slime_swe.launch.rehearse.platforms import Limits
from slime_swe.recipes.base import Recipe
from slime_swe.rollout.records import Record

Figures = Mapping[str, Mapping[int, float]]  # SLiME's name of a figure -> step -> value


@dataclass(frozen=True)
class Trainer:
    """One run of SLiME's trainer. steps: by rollout. figures: SLiME's own. exports: rollout -> Hugging Face folder.

    arguments: what SLiME's and Megatron's parsers made of the command line. parameters: the number that each rank of
    tensor and pipeline parallelism has, as Megatron counts them.
    """

    steps: Mapping[int, Step]
    figures: Figures
    exports: Mapping[int, Path]
    arguments: Mapping[str, str] = field(default_factory=dict)
    parameters: Mapping[tuple[int, int], int] = field(default_factory=dict)


@dataclass(frozen=True)
class Evidence:
    """Everything that the checks read.

    recipe: as it was rehearsed. limits: those of the checks, on that platform. config: the toy's `config.json`. ends:
    tokens that end a turn, by the chat template.

    layout: the run of rollouts, training and weight updates. alone: the same rollouts, trained by one rank. resumed:
    the last of them again, after a resumption. converted: the toy, to Megatron's format and back. saved: the last
    checkpoint in Megatron's format, converted. skipped: `rollouts`, and why there are none, where batches of random
    tokens stand in their place.
    """

    recipe: Recipe
    limits: Limits
    asked: Mapping[str, Any]
    toy: Path
    config: Mapping[str, Any]
    ends: Sequence[int]
    rollouts: Sequence[Sequence[Rolled]]
    records: Sequence[Record]
    layout: Trainer
    alone: Trainer
    resumed: Trainer
    converted: Path
    saved: Path
    skipped: Mapping[str, str] = field(default_factory=dict)

    @property
    def last(self) -> int:
        """The number of the last rollout."""
        return len(self.rollouts) - 1

    def weights_of(self, version: int) -> Path:
        """Return the Hugging Face folder of a weight version: SLiME calls the weights that have seen n steps n + 1."""
        return self.toy if version == 1 else self.layout.exports[version - 2]

    @cached_property
    def unknown_versions(self) -> set[str]:
        """The versions that tokens name and of which the run has exported no weights."""
        known = {"1", *(str(rollout + 2) for rollout in self.layout.exports)}
        spans = [span for samples in self.rollouts for sample in samples for span in sample.spans]
        return {name for name, _ in spans if name and name not in known}

    @cached_property
    def forwards(self) -> dict[tuple[int, int, int], Forward]:
        """The result of Transformers for each (rollout, place, version): that of the sample with the weights of that
        version, where there are any."""
        wanted = [
            (version, rollout, place)
            for rollout, samples in enumerate(self.rollouts)
            for place, sample in enumerate(samples)
            for version in {int(name) for name in sample.versions_R() if name and name not in self.unknown_versions}
        ]
        found: dict[tuple[int, int, int], Forward] = {}
        for version in sorted({version for version, *_ in wanted}):
            model = Reference(self.config, self.weights_of(version))
            for _, rollout, place in (one for one in wanted if one[0] == version):
                tokens = self.rollouts[rollout][place].tokens
                found[rollout, place, version] = model.forward(tokens, self.recipe.rollout.temperature)
        return found


# Transformers computes the same weights and tokens, and shares no code with SGLang or Megatron.
Weights = Mapping[str, Tensor]
VISION = ".visual."
PACKED = {"gate_up_proj": ("gate_proj", "up_proj"), "down_proj": ("down_proj",)}  # tensor -> what is in it, by rows
LATENT_NORMS = ("q_a_layernorm", "kv_a_layernorm")  # 1e-6 in Transformers, whatever the config says that others read
_EXPERTS = re.compile(r"layers\.(\d+)\.(?:\w+\.)*experts$")


@dataclass(frozen=True)
class Forward:
    """A forward pass. log_probs_T: for each token but the first. experts: layer -> T x chosen, if it has experts."""

    log_probs_T: Tensor
    experts: Mapping[int, Tensor]


class Reference:
    """The model of a `config.json` with the weights of a Hugging Face folder, in float32."""

    def __init__(self, config: Mapping[str, Any], folder: Path) -> None:
        from transformers import AutoModelForCausalLM, AutoModelForImageTextToText

        kind: Any = AutoModelForImageTextToText if "text_config" in config else AutoModelForCausalLM
        self.model = kind.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
        self.chosen: dict[int, Tensor] = {}
        for name, module in self.model.named_modules():
            if name.endswith(LATENT_NORMS):
                module.variance_epsilon = config["rms_norm_eps"]
            found = _EXPERTS.search(name)
            if found:
                module.register_forward_pre_hook(self._keeping(int(found[1])), with_kwargs=True)

    def _keeping(self, layer: int) -> Any:
        def keep(module: Any, args: tuple[Any, ...], options: dict[str, Any]) -> None:
            given = [value for value in (*args, *options.values()) if isinstance(value, Tensor)]
            (self.chosen[layer],) = (value for value in given if not value.is_floating_point())

        return keep

    @torch.no_grad()
    def forward(self, tokens: list[int], temperature: float = 1.0) -> Forward:
        self.chosen.clear()
        ids = torch.tensor([tokens])
        logits = self.model(input_ids=ids, use_cache=False).logits[0, :-1].float() / temperature
        log_probs = logits.log_softmax(-1).gather(1, ids[0, 1:, None])[:, 0]
        return Forward(log_probs, {layer: chosen.clone() for layer, chosen in self.chosen.items()})


def read_weights(folder: Path) -> dict[str, Tensor]:
    """Read the tensors of a Hugging Face folder, but for a vision tower's, which SLiME neither trains nor converts.

    Packed experts are taken one by one, as SLiME writes them. Raises `FileNotFoundError` where there are no tensors.
    """
    from safetensors.torch import load_file

    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise FileNotFoundError(f"{folder} holds no *.safetensors")
    found = [(name, tensor) for path in files for name, tensor in load_file(path).items() if VISION not in name]
    return {name: tensor for packed in found for name, tensor in _one_by_one(*packed)}


def _one_by_one(name: str, tensor: Tensor) -> Iterator[tuple[str, Tensor]]:
    """Yield each expert's own tensors of a packed one, and any other as it is.

    Packed are `experts.gate_up_proj`, experts x 2 widths x hidden size, and `experts.down_proj`.
    """
    start, packed, projection = name.rpartition(".experts.")
    if not packed or projection not in PACKED:
        yield name, tensor
        return
    for expert, weights in enumerate(tensor):
        for part, weight in zip(PACKED[projection], weights.chunk(len(PACKED[projection])), strict=True):
            yield f"{start}{packed}{expert}.{part}.weight", weight


# SLiME dumps, for debugging, the samples of a rollout, and what a training step had of each.
#
# Sources: SLiME `observability/rollout_data_utils.py`, `observability/train_data_utils.py`.
ROLLOUTS, STEPS = "dumps/rollout_{rollout_id}.pt", "dumps/step_{rollout_id}.pt"  # below a run's folder


@dataclass(frozen=True)
class Rolled:
    """One sample of a rollout. Masks and log-probabilities are of the response's R tokens.

    spans: weight version -> number of tokens, over the response; None where nothing was sampled.
    experts: those that the server's router chose for each token but the last, (T - 1) x L x chosen; None without.
    """

    index: int
    group: int
    trajectory: int
    tokens: list[int]
    length: int
    mask_R: list[int]
    log_probs_R: list[float]
    reward: float
    removed: bool
    spans: tuple[tuple[str | None, int], ...]
    experts: Tensor | None

    @property
    def sampled(self) -> Tensor:
        """The places in the response that the policy sampled, in order."""
        return torch.tensor(self.mask_R).nonzero()[:, 0]

    def versions_R(self) -> list[str | None]:
        return [version for version, count in self.spans for _ in range(count)]


@dataclass(frozen=True)
class Trained:
    """The trainer's values of one sample, in the order of the rollout's dump."""

    tokens: list[int]
    log_probs_R: Tensor
    rollout_log_probs_R: Tensor
    advantages_R: Tensor
    mask_R: list[int]
    mask_sum: float
    raw_reward: float


@dataclass(frozen=True)
class Shard:
    """One data-parallel rank's part: the places of its samples in the rollout's dump, and its micro-batches of them."""

    places: list[int]
    micro_batches: list[list[int]]


@dataclass(frozen=True)
class Step:
    """A training step. batch_sizes: episodes of each optimizer step, as SLiME divides by them."""

    samples: list[Trained]
    shards: list[Shard]
    batch_sizes: list[int]


def read_rollouts(run: Path) -> list[list[Rolled]]:
    return [[_rolled(sample) for sample in dump["samples"]] for dump in _dumps(run, ROLLOUTS)]


def read_steps(run: Path) -> dict[int, Step]:
    """Read the training steps by the number of the rollout that they trained on."""
    return {int(dump["rollout_id"]): _step(dump) for dump in _dumps(run, STEPS)}


def dump_paths(run: Path, pattern: str) -> dict[int, Path]:
    """Map each rollout's number to its file, in order. pattern: `ROLLOUTS` or `STEPS`."""
    start, _, end = Path(pattern).name.partition("{rollout_id}")
    paths = (run / pattern).parent.glob(f"{start}*{end}")
    found = {path.name[len(start) : -len(end)]: path for path in paths}
    return dict(sorted((int(number), path) for number, path in found.items() if number.isdigit()))


def _dumps(run: Path, pattern: str) -> Iterator[Mapping[str, Any]]:
    """Load the dumps of rollouts in the order of their numbers."""
    for path in dump_paths(run, pattern).values():
        yield torch.load(path, map_location="cpu", weights_only=False)


def _rolled(sample: Mapping[str, Any]) -> Rolled:
    experts = sample.get("rollout_routed_experts")
    index = int(sample["index"])
    return Rolled(
        index=index,
        group=int(sample["group_index"]),
        trajectory=index if sample.get("rollout_id") is None else int(sample["rollout_id"]),
        tokens=[int(token) for token in sample["tokens"]],
        length=int(sample["response_length"]),
        mask_R=[int(bit) for bit in sample["loss_mask"]],
        log_probs_R=[float(value) for value in sample["rollout_log_probs"]],
        reward=float(sample["reward"]),
        removed=bool(sample["remove_sample"]),
        spans=tuple((version, int(count)) for version, count in sample["metadata"]["version_spans"]),
        experts=None if experts is None else torch.as_tensor(experts),
    )


def _step(dump: Mapping[str, Any]) -> Step:
    raw: Sequence[float] = dump["raw_reward"]
    return Step(
        [_trained(sample, raw[place]) for place, sample in enumerate(dump["samples"])],
        [_shard(shard) for shard in dump["dp_shards"]],
        [int(size) for size in dump["dp_shards"][0]["global_batch_sizes"]],
    )


def _trained(sample: Mapping[str, Any], raw_reward: float) -> Trained:
    return Trained(
        tokens=torch.as_tensor(sample["tokens"]).tolist(),
        log_probs_R=torch.as_tensor(sample["log_probs"]).float(),
        rollout_log_probs_R=torch.as_tensor(sample["rollout_log_probs"]).float(),
        advantages_R=torch.as_tensor(sample["advantages"]).float(),
        mask_R=torch.as_tensor(sample["loss_masks"]).int().tolist(),
        mask_sum=float(sample["rollout_mask_sums"]),
        raw_reward=float(raw_reward),
    )


def _shard(shard: Mapping[str, Any]) -> Shard:
    """Read one rank's share; SLiME numbers a micro-batch's samples within the rank."""
    return Shard(list(shard["partition"]), [[int(place) for place in batch] for batch in shard["micro_batch_indices"]])


# A trainer's log has Megatron's table of its arguments, and its count of each rank's parameters.
_ARGUMENT = re.compile(r"^(?:\(.*?\)\s)?\s{2}(\w+) \.{2,} ?(.*)$")
_COUNTED = re.compile(r"number of parameters on \(tensor, pipeline\) model parallel rank \((\d+), (\d+)\): (\d+)")
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")


def arguments(log: str) -> dict[str, str]:
    """Map each attribute to its value as text, as Megatron prints them once all are final."""
    lines = _COLOURS.sub("", log).splitlines()
    return {match[1]: match[2] for line in lines if (match := _ARGUMENT.match(line))}


def parameters(log: str) -> dict[tuple[int, int], int]:
    """Map each rank of tensor and of pipeline parallelism to its parameters, experts included."""
    return {(int(tp), int(pp)): int(count) for tp, pp, count in _COUNTED.findall(_COLOURS.sub("", log))}


def vocabulary_of(config: Mapping[str, Any]) -> int:
    return int(config.get("text_config", config)["vocab_size"])


def same(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and bool((one.float() == other.float()).all())
