"""The engine that shows, without a GPU, that what trains on one is what was tested: real SLiME on real Megatron.

SLiME's `train.py` or `train_async.py` runs with the recipe's own plug-ins; the embedded server is its rollout engine.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path

from slime_swe.launch.engines import WITHOUT_GPUS, Engine, Start
from slime_swe.launch.extras import require
from slime_swe.launch.slime import flags
from slime_swe.launch.slime.checkouts import Checkouts, require_checkouts
from slime_swe.launch.slime.job import Job
from slime_swe.launch.slime.manifest import OF_THE_IMAGE
from slime_swe.launch.slime_cpu.render import WITHOUT_GPU, render
from slime_swe.launch.summary import show_summary
from slime_swe.recipes.base import Recipe
from slime_swe.recipes.checks import Fixed, not_fixed, only
from slime_swe.recipes.rules import on_any_machine
from slime_swe.recipes.violation import Violation

PACKAGES = ("ray", "sglang", "sglang_router", "tensorboard", "torch", "transformers")
NO_SERVER = "HOST:PORT"  # stands for the server's address, which is not known before it runs

RULES: tuple[Fixed, ...] = (
    *WITHOUT_GPUS,
    *only([], "this engine starts the embedded server and names it to SLiME", "serving.external_engines"),
)


class SlimeCpu(Engine):
    """SLiME and Megatron-core in an environment of their own, with the embedded server in SGLang's place."""

    doctor = (
        *("recipe", "machine", "limits", "run folder", "sources", "ports", "checkpoint", "chat template", "tasks"),
        *("overlap", "plug-ins", "sandbox"),
    )
    open_files = (4096, 8192)
    raises_open_files = True

    def violations(self, recipe: Recipe) -> Iterable[Violation]:
        yield from chain(not_fixed(recipe, RULES), on_any_machine(recipe), flags.violations(recipe, WITHOUT_GPU))
        yield from _without_sglang(recipe)

    def check(self, recipe: Recipe, start: Start) -> None:
        require_checkouts(os.environ)
        require(*PACKAGES, extra="slime_cpu")
        self.job(recipe, Path(recipe.run.dir), resume=start.resume)

    def run(self, recipe: Recipe, folder: Path, start: Start) -> int:
        from slime_swe.launch.slime_cpu.run import train  # torch takes seconds to import

        summary = train(recipe, folder.resolve(), resume=start.resume)
        show_summary(summary, folder, as_json=start.as_json)
        return 0

    def job(self, recipe: Recipe, folder: Path, *, resume: bool) -> Job:
        """The command that `run` starts once its server says where it is."""
        return render(recipe, folder, NO_SERVER, checkouts=Checkouts.find(), resume=resume)


def _without_sglang(recipe: Recipe) -> Iterator[Violation]:
    """SLiME starts its router here, PyPI's, and no SGLang server."""
    for name, value in recipe.slime.flags.items():
        key = f"{flags.HEADING}.{name}"
        if name.startswith("sglang-"):
            yield Violation(key, f"{key} is for SGLang, and the embedded server runs in its place", "leave it out")
        elif value in OF_THE_IMAGE.get(f"--{name}", ()):
            yield Violation(key, f"{key}={value} is known in SLiME's image alone", "use manual, or leave it out")
