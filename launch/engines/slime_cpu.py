"""The engine that shows, without a GPU, that what trains on one is what was tested: real SLiME on real Megatron.

SLiME's `train.py` or `train_async.py` runs with the recipe's own plug-ins and layout. Its rollout engine is the
embedded server, or with `serving.server=sglang` a real SGLang that SLiME starts.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import chain
from pathlib import Path

from slime_swe.launch.engines import BY_EMBEDDED, WITHOUT_GPUS, Engine, Start, without_caches
from slime_swe.launch.engines.slime import exported
from slime_swe.launch.extras import require
from slime_swe.launch.progress import show_summary
from slime_swe.launch.slime import flags
from slime_swe.launch.slime.checkouts import require_checkouts
from slime_swe.launch.slime.job import Job
from slime_swe.launch.slime.render import HEADING
from slime_swe.launch.slime.upstream import SLIME
from slime_swe.launch.slime_cpu.render import WITHOUT_GPU, ranks, render
from slime_swe.launch.slime_cpu.sglang_cpu import serving
from slime_swe.recipes.base import SGLANG, Recipe
from slime_swe.recipes.checks import Fixed, Violation, not_fixed, only
from slime_swe.recipes.rules import on_any_machine, trainer_groups, trainer_sizes

PACKAGES = ("ray", "sglang", "sglang_router", "tensorboard", "torch", "transformers")
GUIDING = ("llguidance",)  # what SGLang samples with by a grammar on a CPU
MOST_RANKS = 8  # of 0.7 GB each, before the model
NO_SERVER = "HOST:PORT"  # stands for the server's address, which is not known before it runs

RULES: tuple[Fixed, ...] = (
    *WITHOUT_GPUS,
    *only([], "this engine has a server started that only the run itself uses", "serving.external_engines"),
)
BY_SGLANG: tuple[Fixed, ...] = (
    *only(False, "SGLang draws by a request's own seed on GPUs alone", "serving.deterministic"),
)


class SlimeCpu(Engine):
    """SLiME and Megatron-core in an environment of their own, and SGLang or the embedded server in its place."""

    doctor = (
        *("recipe", "machine", "limits", "run folder", "sources", "ports", "fields", "checkpoint", "chat template"),
        *("tasks", "overlap", "plug-ins", "sandbox"),
    )
    upstream = SLIME
    open_files = (4096, 8192)
    raises_open_files = True

    def violations(self, recipe: Recipe) -> Iterable[Violation]:
        by_sglang = recipe.serving.server == SGLANG
        fixed = (*RULES, *(BY_SGLANG if by_sglang else BY_EMBEDDED))
        taken = {**WITHOUT_GPU, **(serving(recipe) if by_sglang else {})}
        yield from chain(not_fixed(recipe, fixed), without_caches(recipe), layout(recipe), on_any_machine(recipe))
        yield from flags.violations(recipe, SLIME, taken)
        yield from _flags_of_servers(recipe, by_sglang)

    def check(self, recipe: Recipe, start: Start) -> None:
        require_checkouts(os.environ)
        require(*PACKAGES, *(GUIDING if recipe.rollout.grammar else ()), extra="slime_cpu")
        self.job(recipe, Path(recipe.run.dir), resume=start.resume)

    def run(self, recipe: Recipe, folder: Path, start: Start) -> int:
        from slime_swe.launch.slime_cpu.run import train  # torch takes seconds to import

        summary = train(recipe, folder.resolve(), resume=start.resume)
        show_summary(summary, folder, as_json=start.as_json)
        return 0

    def trained(self, recipe: Recipe, folder: Path) -> str:
        found = exported(recipe, folder)
        return "" if found is None else str(found)

    def job(self, recipe: Recipe, folder: Path, *, resume: bool) -> Job:
        """Return the command that `run` starts once the embedded server says where it is."""
        address = None if recipe.serving.server == SGLANG else NO_SERVER
        return render(recipe, folder, address, checkouts=SLIME.checkouts(), resume=resume)


def layout(recipe: Recipe) -> Iterator[Violation]:
    """Refuse sizes with which the ranks that hold one copy of the model can't share this machine."""
    count = ranks(recipe)
    if count > MOST_RANKS:
        sizes = {f"parallel.{way}": getattr(recipe.parallel, way) for way in ("tp", "pp", "cp", "ep", "etp")}
        largest = max(sizes, key=lambda key: sizes[key])
        yield Violation(
            largest,
            f"{' '.join(f'{key}={size}' for key, size in sizes.items())} make {count} ranks, and this engine runs at "
            f"most {MOST_RANKS} on one machine",
            f"make {largest} smaller",
        )
    machine = replace(recipe.cluster, nodes=1, gpus_per_node=count)
    yield from chain(trainer_sizes(recipe), trainer_groups(replace(recipe, cluster=machine)))


def _flags_of_servers(recipe: Recipe, by_sglang: bool) -> Iterator[Violation]:
    """Refuse flags of SGLang where the embedded server runs in its place, and values that only the router of SLiME's
    image knows: the one that starts here is PyPI's."""
    for name, value in recipe.slime.flags.items():
        key = f"{HEADING}.{name}"
        if name.startswith("sglang-") and not by_sglang:
            yield Violation(key, f"{key} is for SGLang, and the embedded server runs in its place", "leave it out")
        elif value in SLIME.of_the_image.get(f"--{name}", ()):
            yield Violation(key, f"{key}={value} is known in SLiME's image alone", "use manual, or leave it out")
