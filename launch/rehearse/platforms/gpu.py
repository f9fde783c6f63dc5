"""This node's own GPUs: the recipe's flags as they are, but for the size of the model, amounts, folders and the layout
where the node has fewer GPUs than the recipe.

NCCL, Transformer Engine, CUDA IPC or NCCL weight updates, the memory saver, co-location, offloading, bfloat16, and the
router and servers of SLiME's image. Never executed on a GPU: docs/rehearse.md says which lines.

Not covered: more than this node, FP8, the weights, length and width of the real model.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import Any

from slime_swe.errors import UserError
from slime_swe.launch.doctor import Machine, MachineError
from slime_swe.launch.doctor.gpus import COMMAND, IDLE_MIB, Gpu, parse
from slime_swe.launch.doctor.versions import packages
from slime_swe.launch.rehearse.jobs import DRAFTING, LAYOUT
from slime_swe.launch.rehearse.platforms import BFLOAT16, Platform
from slime_swe.launch.slime.checkouts import Checkouts
from slime_swe.launch.slime.manifest import Attributes
from slime_swe.launch.slime.render import environment
from slime_swe.launch.slime.upstream import SLIME
from slime_swe.recipes.base import Recipe, Slime

VISIBLE = "CUDA_VISIBLE_DEVICES"
WIDER = 4  # times what a toy's layers are wide on a CPU: tensor cores and fused kernels want some multiples
WIDTHS = ("hidden_size", "intermediate_size", "moe_intermediate_size", "shared_expert_intermediate_size")
HEADS = (  # the model's own, as attention kernels are made for these
    *("head_dim", "rotary_dim", "q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"),
    *("linear_key_head_dim", "linear_value_head_dim", "linear_conv_kernel_dim"),
    *("linear_num_key_heads", "linear_num_value_heads"),
)
SERVERS = "servers of the rehearsal's own, as the recipe's hold the real model"
REASONS: Mapping[str, tuple[str, ...]] = {
    LAYOUT: (
        *("--rollout-num-gpus", "--rollout-num-gpus-per-engine", "--sglang-ep", "--sglang-enable-dp-attention"),
        *("--sglang-data-parallel-size", "--sglang-enable-dp-lm-head", "--sglang-moe-dense-tp-size"),
    ),
    SERVERS: (
        *("--sglang-router-ip", "--sglang-router-port", "--rollout-external-engine-addrs"),
        *("--update-weight-transport", "--update-weight-disk-dir"),
    ),
}
ELSEWHERE = "run it on a node with GPUs, or rehearse on a CPU: leave on=gpu out"
_BROKEN = "run `nvidia-smi` yourself: where it fails too, the driver must be put right"


class GpuPlatform(Platform):
    """This node's GPUs. gpus: those that this process may use. listed: CUDA_VISIBLE_DEVICES, where it names them."""

    name = "gpu"
    limits = BFLOAT16
    learning_rate = 3e-3  # less does not change a norm's weights near 1, which bfloat16 has in steps of 0.004
    copies = 8

    def __init__(self, gpus: Sequence[Gpu], listed: str | None = None) -> None:
        self.gpus = gpus
        self.visible = listed or ",".join(str(gpu.index) for gpu in gpus)

    @classmethod
    def here(cls) -> GpuPlatform:
        listed = os.environ.get(VISIBLE)
        gpus = gpus_here(Machine(), listed)
        require_idle(gpus)
        SLIME.require()
        require_stack()
        return cls(gpus, listed)

    @contextmanager
    def computing(self) -> Iterator[None]:
        """Hide the GPUs, with which Transformers would take CUDA's kernels, for tensors on a CPU too."""
        before = os.environ.get(VISIBLE)
        os.environ[VISIBLE] = ""
        try:
            yield
        finally:
            os.environ.pop(VISIBLE)
            os.environ.update({} if before is None else {VISIBLE: before})

    def ranks(self, recipe: Recipe) -> int:
        """Count all GPUs, or half of them where others serve, down to a power of 2, as layouts are.

        Raises `UserError` where others serve and there is one GPU.
        """
        own = recipe.cluster.colocate
        if not own and len(self.gpus) < 2:
            raise UserError(
                f"on=gpu: {recipe.name} trains and serves on different GPUs (cluster.colocate=false), and this process "
                "may use one: rehearse it on a node with 2 or more, or on a CPU: leave on=gpu out"
            )
        return _power_of_2(len(self.gpus) if own else len(self.gpus) // 2)

    def placed(self, recipe: Recipe, ranks: int) -> Recipe:
        cluster, serving = recipe.cluster, recipe.serving
        others = 0 if cluster.colocate else _power_of_2(len(self.gpus) // 2)
        share = _halved(serving.gpus_per_engine or 1, others or ranks)
        return replace(
            recipe,
            cluster=replace(cluster, gpus_per_node=ranks, rollout_gpus=others),
            serving=replace(
                serving,
                gpus_per_engine=share,
                ep=_halved(serving.ep, share),
                dp_attention=serving.dp_attention and share == serving.gpus_per_engine,
            ),
            slime=Slime({name: value for name, value in recipe.slime.flags.items() if not name.startswith(DRAFTING)}),
        )

    def toy_values(self, toy: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
        """Return larger widths, with heads as wide as the model's own."""
        found = {key: WIDER * toy[key] for key in WIDTHS if key in toy}
        if not own.keys() & {"head_dim", "v_head_dim"}:  # then the hidden size says how wide they are
            found["hidden_size"] = toy["num_attention_heads"] * own["hidden_size"] // own["num_attention_heads"]
        return found | {key: own[key] for key in HEADS if key in toy and key in own}

    def unserved(self, recipe: Recipe) -> str:
        return ""

    def routed(self, recipe: Recipe) -> bool:
        return False

    def sections(self, recipe: Recipe, found: Mapping[str, Attributes]) -> dict[str, Attributes]:
        return dict(found)

    def conversion(self) -> Attributes:
        return {}

    def program(self, script: Path) -> tuple[str, ...]:
        return (sys.executable, "-m", "slime_swe.launch.rehearse.platforms.local_ray", str(script))

    def tool(self, script: Path) -> tuple[str, ...]:
        return (sys.executable, str(script))

    def environment(self, recipe: Recipe, run: Path, checkouts: Checkouts) -> dict[str, str]:
        return {**environment(recipe, run, checkouts), VISIBLE: self.visible}

    def stand_ins(self, recipe: Recipe) -> Mapping[str, str]:
        return {flag: reason for reason, flags in REASONS.items() for flag in flags}


def gpus_here(machine: Machine, listed: str | None) -> list[Gpu]:
    """List the GPUs that this process may use. listed: CUDA_VISIBLE_DEVICES. Raises `UserError` where there are none,
    or where they are divided (MIG)."""
    try:
        gpus, strange = parse(machine.ask(*COMMAND))
    except MachineError as error:
        raise UserError(f"on=gpu: {error}: {_BROKEN if machine.has('nvidia-smi') else ELSEWHERE}") from error
    if not gpus:
        said = f"nvidia-smi says {strange[0][:120]!r}" if strange else "nvidia-smi lists no GPU"
        raise UserError(f"on=gpu: {said}: {_BROKEN if strange else ELSEWHERE}")
    if listed is not None:
        names = [name.strip() for name in listed.split(",") if name.strip() not in ("", "-1")]
        gpus = [_named(name, gpus) for name in names]
    if not gpus:
        raise UserError(f"on=gpu: CUDA_VISIBLE_DEVICES={listed!r} hides every GPU: unset it, or list some")
    if split := [str(gpu.index) for gpu in gpus if gpu.partitioned]:
        raise UserError(
            f"on=gpu: GPU {', '.join(split)} is divided into instances (MIG), between which NCCL does not talk: take "
            "other GPUs by CUDA_VISIBLE_DEVICES, or have an administrator turn MIG off"
        )
    return gpus


def _named(name: str, gpus: Sequence[Gpu]) -> Gpu:
    """Find a GPU by its number, UUID or the beginning of that, as CUDA does. Raises `UserError` where there is none."""
    found = [gpu for gpu in gpus if name == str(gpu.index) or (name.startswith("GPU-") and gpu.uuid.startswith(name))]
    if len(found) != 1:
        there = ", ".join(f"{gpu.index} ({gpu.uuid})" for gpu in gpus)
        raise UserError(f"on=gpu: CUDA_VISIBLE_DEVICES names {name!r}, and this node has {there}: name some of these")
    return found[0]


def require_idle(gpus: Sequence[Gpu]) -> None:
    """Raise `UserError` where something else runs there: co-location wants all of their memory."""
    if busy := [f"{gpu.index} ({gpu.used / 1024:.1f} GiB)" for gpu in gpus if gpu.used > IDLE_MIB]:
        raise UserError(
            f"on=gpu: in use: GPU {', '.join(busy)}. Wait for, or stop, what runs there (`nvidia-smi` lists it), or "
            "leave these out by CUDA_VISIBLE_DEVICES"
        )


def require_stack() -> None:
    """Raise `UserError` where this Python lacks a package of SLiME's image, or PyTorch is built without CUDA."""
    missing = [*packages(SLIME).keys() - versions(packages(SLIME)).keys()]
    if not missing:
        import torch

        missing = [] if torch.version.cuda else ["CUDA in torch"]
    if missing:
        raise UserError(
            f"on=gpu: {sys.executable} has no {', '.join(missing)}: run it inside {SLIME.image}, which holds the whole "
            "stack"
        )


def versions(names: Iterable[str]) -> dict[str, str]:
    """Return the versions of those distributions that are installed."""
    found = {}
    for name in names:
        with suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found


def _power_of_2(count: int) -> int:
    """Return the largest power of 2 that is not above a count."""
    return 1 << (count.bit_length() - 1)


def _halved(size: int, whole: int) -> int:
    """Halve a size until it divides the whole."""
    while whole % size:
        size = size // 2
    return size
