"""One optimizer step of real SLiME and Megatron on a given batch, in a given layout, and what came of it."""

from __future__ import annotations

import importlib
import multiprocessing
import os
import shutil
import socket
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from slime_swe.launch.model import EMBEDDED_SEED, checkpoint_folder
from slime_swe.launch.slime.paths import EXPORTS, TENSORBOARD
from slime_swe.launch.slime.upstream import SLIME
from slime_swe.launch.slime_cpu.render import ranks, render
from slime_swe.launch.slime_cpu.run import scalars
from slime_swe.recipes.base import Parallel, Recipe, Slime
from slime_swe.recipes.families import load_family
from slime_swe.recipes.registry import load_recipe
from tests.launch.slime_cpu.forked import join
from tests.recipes.changes import changed

LEARNING_RATE = 1e-3
DUMP = "trained.pt"  # what SLiME itself keeps of a step
TIMEOUT = 600.0  # seconds of one run
VISION = {"depth": 1, "hidden_size": 32, "intermediate_size": 32, "num_heads": 2, "out_hidden_size": 64}  # not trained
LENGTHS = ((37, 20), (50, 41), (23, 9), (61, 50))  # tokens of an episode, and of its response
SMALL = {
    "rollout.batch_size": 2,
    "rollout.samples_per_task": 2,
    "data.train": ["synthetic:train"],
    "data.eval": {},
    "rollout.sandbox": "local",
    "rollout.log": "",
    "run.num_rollouts": 1,
    "run.save_interval": 1,
    "optimizer.cpu_offload": False,
    "optimizer.lr": LEARNING_RATE,
    "optimizer.clip_grad": 1e3,  # a norm does not change what weights become
    "cluster.threads": 1,
    # Adam's step is the gradient's sign where it is far from this: rounding would turn the step of a weight around.
    "slime": Slime(flags={"adam-eps": 0.1}),
}


@dataclass
class Step:
    """`log_probs` of each response, `figures` by SLiME's name, `weights` in Hugging Face format."""

    log_probs: list[torch.Tensor]
    figures: dict[str, float]
    weights: dict[str, torch.Tensor]


def toy_config(kind: str) -> dict[str, Any]:
    """Of a `model_type`: its family's toy; where that has experts and this type has none, the same without."""
    config = load_family("", kind).toy()
    if config["model_type"] != kind:
        inner = config["text_config"]
        text = {key: value for key, value in inner.items() if "expert" not in key and not key.startswith("moe_")}
        config |= {"model_type": kind, "text_config": {**text, "intermediate_size": 128}}
    return config


def toy_recipe(name: str, kind: str, checkpoint: Path, layout: Parallel) -> Recipe:
    """A shipped recipe, its algorithm and flags, on a toy of a `model_type` in `checkpoint`."""
    recipe = load_recipe(name)
    model = replace(recipe.model, checkpoint=str(checkpoint), config=toy_config(kind))
    for key, value in {**SMALL, "model": model, "parallel": layout}.items():
        recipe = changed(recipe, key, value)
    return recipe


def write_toy(folder: Path, kind: str) -> Path:
    """The toy of a `model_type` with random weights in Hugging Face format, and the seed policy's tokenizer."""
    import transformers

    given = toy_config(kind)
    del given["model_type"]
    vision = "text_config" in given
    config = transformers.AutoConfig.for_model(kind, **given, **({"vision_config": VISION} if vision else {}))
    loader: Any = transformers.AutoModelForImageTextToText if vision else transformers.AutoModelForCausalLM
    torch.manual_seed(0)
    model = loader.from_config(config, attn_implementation="eager").float()
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn_like(parameter) * 0.05
            parameter.copy_(parameter + 2 * noise if parameter.dim() == 1 else noise)
    together = kind == "qwen3_5_moe"  # its published checkpoints have a layer's experts in one tensor
    model.save_pretrained(folder, save_original_format=not together)
    for path in checkpoint_folder(EMBEDDED_SEED, "").glob("*token*"):
        shutil.copy(path, folder)
    return folder


def write_batch(path: Path, vocab: int, experts: tuple[int, int, int] | None = None) -> Path:
    """Two groups of two episodes. experts: layers, experts and those of a token, for replayed routes."""
    from slime.utils.types import Sample

    draw = torch.Generator().manual_seed(1)
    samples = []
    for index, (length, response) in enumerate(LENGTHS):
        sample = Sample(group_index=index // 2, index=index, rollout_id=index, prompt="p", reward=float(index % 2))
        sample.tokens = torch.randint(vocab, (length,), generator=draw).tolist()
        sample.response_length, sample.status = response, Sample.Status.COMPLETED
        sample.loss_mask = [int(place % 7 != 3) for place in range(response)]
        sample.rollout_log_probs = (-6 + torch.randn(response, generator=draw)).tolist()
        if experts:
            layers, total, chosen = experts
            order = torch.rand(length - 1, layers, total, generator=draw).argsort(-1)
            sample.rollout_routed_experts = order[..., :chosen].int()
        samples.append(sample.to_dict())
    torch.save({"rollout_id": 0, "samples": samples}, path)
    return path


def train(recipe: Recipe, folder: Path, batch: Path, *extra: str, copies: int = 1) -> Step:
    """SLiME's own actors, one a process, without Ray between them; so many that they hold `copies` of the model. Raises
    `RuntimeError` with the end of their log.

    The processes are forked from this one, which has imported what they need once.
    """
    importlib.import_module("slime.backends.megatron_utils.actor")
    folder.mkdir(parents=True)
    job = render(recipe, folder, "127.0.0.1:1", checkouts=SLIME.checkouts())
    job.write_files()
    dump, log = folder / DUMP, folder / "slime.log"
    replay = ("--debug-train-only", "--load-debug-rollout-data", str(batch), "--save-debug-train-data", str(dump))
    words = [*(word for group in job.flags.values() for word in group), *replay, *extra]
    size, port = copies * ranks(recipe), free_port()
    ways = multiprocessing.get_context("fork")
    environment = {name: value for name, value in job.environment.items() if name != "PYTHONPATH"}
    processes = [
        ways.Process(target=_rank, args=(rank, size, port, words, batch, environment, log)) for rank in range(size)
    ]
    for process in processes:
        process.start()
    join(processes, TIMEOUT)
    if codes := [process.exitcode for process in processes if process.exitcode]:
        raise RuntimeError(f"ranks ended with {codes}; {log} ends with:\n{log.read_text()[-6000:]}")
    return read_step(folder, dump)


def _rank(
    rank: int, size: int, port: int, words: list[str], batch: Path, environment: dict[str, str], log: Path
) -> None:
    with log.open("ab") as output:
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
    os.environ.update(environment)
    torch.set_num_threads(1)
    sys.argv = ["train.py", *words]
    import ray
    from slime.backends.megatron_utils.actor import MegatronTrainRayActor
    from slime.backends.megatron_utils.hf_checkpoint_saver import save_hf_model_to_path
    from slime.ray import train_actor
    from slime.utils.arguments import parse_args

    train_actor.get_local_gpu_id = lambda: rank  # of Ray's resources
    ray.put = ray.get = lambda value: value
    actor = MegatronTrainRayActor(size, rank, "127.0.0.1", port)
    args = parse_args()
    os.environ["ENABLE_ROUTING_REPLAY"] = str(int(args.use_routing_replay))  # as SLiME does for its actors
    actor.init(args, "actor")
    actor.train(0, train_data(args, actor.train_parallel_config, batch))
    save_hf_model_to_path(args, args.save_hf.format(rollout_id=0), actor.model)


def train_data(args: Any, parallel: dict[str, int], batch: Path) -> Any:
    """What SLiME's rollout manager hands to its trainer."""
    from slime.observability.rollout_data_utils import load_debug_rollout_data
    from slime.ray.rollout import RolloutManager
    from slime.utils.misc import load_function

    manager = object.__new__(RolloutManager.__ray_metadata__.modified_class)
    manager.args = args
    manager.custom_reward_post_process_func = load_function(args.custom_reward_post_process_path)
    manager.custom_convert_samples_to_train_data_func = None
    manager.set_train_parallel_config(parallel)
    samples = load_debug_rollout_data(str(batch), rollout_id=0)
    return manager._split_train_data_by_dp(manager._convert_samples_to_train_data(samples))


def read_step(folder: Path, dump: Path) -> Step:
    from safetensors.torch import load_file

    samples = torch.load(dump, weights_only=False)["samples"]
    weights: dict[str, torch.Tensor] = {}
    for path in sorted((folder / EXPORTS / "0").glob("*.safetensors")):
        weights |= load_file(path)
    figures = {tag: values[0] for tag, values in scalars(folder / TENSORBOARD).items() if 0 in values}
    return Step([sample["log_probs"] for sample in samples], figures, weights)


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])
