"""The engine for GPUs with SLiME's fork miles: its `train.py`, our plug-ins, and LoRA."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain

from slime_swe.errors import UserError
from slime_swe.launch.engines import Start
from slime_swe.launch.engines.slime import Slime
from slime_swe.launch.miles.upstream import MILES
from slime_swe.launch.slime import flags
from slime_swe.launch.slime.render import HEADING
from slime_swe.recipes import adapters, rules
from slime_swe.recipes.base import Recipe
from slime_swe.recipes.checks import Violation, against

SPECULATIVE = "sglang-speculative-algorithm"


class Miles(Slime):
    """miles, its Megatron-LM and SGLang on the GPUs of a Ray cluster."""

    upstream = MILES
    rehearsed = False  # the rehearsal starts SLiME's own train.py

    def violations(self, recipe: Recipe) -> Iterable[Violation]:
        own = (left_out(recipe), adapters.untrainable(recipe), flags.violations(recipe, self.upstream))
        return chain(rules.violations(recipe), *own)

    def check(self, recipe: Recipe, start: Start) -> None:
        if start.resume and recipe.algorithm.lora_rank:
            raise UserError(
                "--resume: a run with algorithm.lora_rank can't go on. miles saves the adapter with its optimizer's "
                "state (checkpoints/iter_*/adapter), and does not read on from the newest of them. Start a run anew, "
                "from that adapter by slime.flags.lora-adapter-path if you like"
            )
        super().check(recipe, start)


def left_out(recipe: Recipe) -> Iterator[Violation]:
    """Yield what the recipe asks for that SLiME has and miles 31f1ca96 has not (`utils/arguments.py`,
    `backends/training_utils/loss_hub`), or that SGLang has not with adapters (`srt/server_args.py`,
    `check_lora_server_args`)."""
    no, algorithm, kind = against(recipe), recipe.algorithm, recipe.model.config["model_type"]
    if not recipe.model.kind.in_miles:
        yield Violation("model.config.model_type", f"miles trains no {kind} models", "use engine=slime")
    if algorithm.estimator == "cispo":
        yield no("algorithm.estimator", "is not a loss of miles", "use grpo or gspo, or engine=slime")
    if algorithm.kl_coef and algorithm.kl_in == "reward":
        why = "takes the penalty off by a function of ours, for which miles has no hook"
        yield no("algorithm.kl_in", why, "use loss, or engine=slime")
    drafted = recipe.slime.flags.get(SPECULATIVE)
    if algorithm.lora_rank and drafted not in (None, "NGRAM"):
        key = f"{HEADING}.{SPECULATIVE}"
        why = f"{key}={drafted} drafts tokens beside an adapter, which SGLang does by n-grams alone"
        yield Violation(key, why, "use NGRAM, or leave it out")
    if recipe.warm_start.data:
        why = "is for a supervised stage, which has not been tried with miles"
        fix = (
            "leave it empty, train the stage under engine=slime (algorithm.lora_rank=0 run.num_rollouts=1) and give "
            "its weights as model.checkpoint: RUN/warm_start/exports/STEP, the last of them"
        )
        yield no("warm_start.data", why, fix)
    if recipe.serving.external_engines:
        why = "load new weights from a shared folder, which miles has no transfer for"
        yield no("serving.external_engines", why, "leave it empty, or use engine=slime")
