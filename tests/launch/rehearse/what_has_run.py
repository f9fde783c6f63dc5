"""What has run, where and when, as one Markdown page.

python -m tests.launch.rehearse.what_has_run > docs/what_has_run.md
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from slime_swe.launch.config import resolve
from slime_swe.launch.rehearse.jobs import digest_of_flags
from slime_swe.launch.rehearse.rehearsal import figure
from slime_swe.recipes.registry import RECIPES

ROOT = Path(__file__).parents[3]
REHEARSALS = ROOT / "benchmarks" / "baselines" / "rehearsals"  # the last of each recipe
BEFORE = REHEARSALS / "before"  # and the one before it
COMMAND = "python -m tests.launch.rehearse.what_has_run > docs/what_has_run.md"
CPU, CONTRACT, NEVER = "CPU, toy width", "contract test", "never"
PARTS = (  # part, how it was run, command or test
    ("training with any recipe, on a GPU", NEVER, "–"),
    ("CUDA IPC, co-location, memory saver, FP8, NCCL between ranks, SGLang on a GPU", NEVER, "–"),
    (
        "layers of two dense recipes in bfloat16: Megatron-LM with Transformer Engine 2.16.1 and cuDNN's attention",
        "one H100, 2026-11-27",
        "`python -m benchmarks.megatron_layers`",
    ),
    (
        "SLiME's converter to Megatron's format: the shape of Qwen2.5-Coder-1.5B, random weights",
        "one H100, 2026-11-27",
        "`tools/convert_hf_to_torch_dist.py` of SLiME, as `slime-swe doctor` prints it",
    ),
    ("a first look at a policy: `tiny_cpu` on the embedded engine", "CPU", "`slime-swe probe recipe=tiny_cpu`"),
    ("a first look at a GPU recipe's policy, behind SGLang", NEVER, "`slime-swe probe recipe=NAME`"),
    ("a rehearsal on GPUs", NEVER, "`slime-swe rehearse recipe=NAME on=gpu`"),
    (
        "each rehearsal's command line on GPUs in SLiME's own parser; its limits, in bfloat16 on a CPU",
        CONTRACT,
        "`tests/contract/test_parser.py`, `tests/launch/rehearse/test_gpu_checks.py`",
    ),
    ("the training image `docker/Dockerfile`", NEVER, "–"),
    ("more than one machine", NEVER, "–"),
    ("`tiny_cpu` on the embedded engine", "CPU, whole run", "`bash launch/run_qwen_swe.sh`, `benchmarks/learning.py`"),
    ("`tiny_cpu` under SLiME's `train.py` and Megatron-LM", "CPU, whole run", "`recipe=tiny_cpu engine=slime_cpu`"),
    (
        "`tiny_cpu` under SLiME's `train.py`, Megatron-LM with two tensor-parallel ranks, and SGLang",
        "CPU, whole run: [it learns](slime_on_a_cpu.md#with-two-tensor-parallel-ranks-and-real-sglang)",
        "`recipe=tiny_cpu engine=slime_cpu parallel.tp=2 serving.server=sglang serving.deterministic=false`",
    ),
    (
        "SLiME's `train_async.py`, weight updates in the midst of episodes",
        CONTRACT,
        "`tests/contract/test_training.py`",
    ),
    (
        "a part of a run that fails, and the resumption: [Faults](faults.md) says which have been drilled",
        CPU,
        "`slime-swe rehearse recipe=qwen25_coder_1_5b faults`",
    ),
    ("each GPU recipe's command line in SLiME's own parser", CONTRACT, "`tests/contract/test_parser.py`"),
    ("parameters of each family on Megatron's own modules", CONTRACT, "`tests/contract/test_model_files.py`"),
    ("losses and gradients beside SLiME's", CONTRACT, "`tests/contract/test_loss.py`"),
    ("SLURM and Ray on two virtual nodes", "CPU", "`tests/launch`"),
    ("sandboxes `local`, `overlay`, `docker`, `apptainer`", "really", "`tests/sandbox`"),
    (
        "episodes admitted by what engines keep in their caches",
        "real agents with a scripted engine; no SGLang that is short of cache",
        "`tests/rollout/test_play.py`",
    ),
)


def rehearsals(folder: Path = REHEARSALS) -> Iterator[dict[str, Any]]:
    for path in sorted(folder.glob("*.json")):
        yield json.loads(path.read_text(encoding="utf-8"))


def page() -> str:
    return "\n".join(_lines()) + "\n"


def _lines() -> Iterator[str]:
    yield from ("# What has run", "")
    yield from ("Each part, how it was run, and the command that runs it again. No recipe has trained on a GPU.", "")
    yield from (f"`{COMMAND}` makes this page, and a test compares it.", "")
    yield from ("| part | how | by |", "| --- | --- | --- |")
    for part, how, command in PARTS:
        yield f"| {part} | {how} | {command} |"
    yield from ("", "## Rehearsals", "")
    yield from (
        "[`slime-swe rehearse`](rehearse.md): real SLiME, Megatron-LM and SGLang on a CPU, a toy of the recipe's",
        "model, on two slow cores that did other things too. `benchmarks/baselines/rehearsals` has the last of each,",
        "and in `before` the one before it, where there was one. *Same flags*: whether the recipe still asks the same",
        "of SLiME as it did then; older records do not say.",
        "",
        "| recipe | when | same flags | checks | not made | seconds | the one before | command |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    )
    found, before = ({outcome["recipe"]: outcome for outcome in rehearsals(folder)} for folder in (REHEARSALS, BEFORE))
    for name in (name for name in RECIPES if resolve(name).engine == "slime"):
        yield _row(name, found.get(name), before.get(name))
    for outcome in found.values():
        yield from ("", f"### {outcome['recipe']}", "")
        yield from _section(outcome)


def _row(name: str, outcome: dict[str, Any] | None, before: dict[str, Any] | None) -> str:
    command = f"`slime-swe rehearse recipe={name}`"
    if outcome is None:
        return f"| {name} | {NEVER} | – | – | – | – | – | {command} |"
    missing = sum(check["ok"] is None for check in outcome["checks"])
    cells = (name, outcome["when"], same_flags(name, outcome), _passed(outcome), missing, f"{outcome['seconds']:.0f}")
    earlier = f"{_passed(before)}, {before['seconds']:.0f} s" if before else NEVER
    return f"| {' | '.join(map(str, cells))} | {earlier} | {command} |"


def same_flags(name: str, outcome: dict[str, Any]) -> str:
    """Say whether a recipe asks the same of SLiME as when it was rehearsed."""
    if "flags" not in outcome:
        return "not recorded"
    return "yes" if outcome["flags"] == digest_of_flags(resolve(name)) else "no"


def _passed(outcome: dict[str, Any]) -> str:
    made = [check for check in outcome["checks"] if check["ok"] is not None]
    return f"{sum(check['ok'] for check in made)} of {len(made)}"


def _section(outcome: dict[str, Any]) -> Iterator[str]:
    for line in outcome["smaller"]:
        yield f"- smaller than the recipe's: {line}"
    yield f"- chat template: {outcome['template'].split(', as ')[0]}"
    yield f"- {len(outcome['differing_flags'])} flags differ from the recipe's own command line"
    yield from ("", "| check | value | limit |", "| --- | --- | --- |")
    for check in outcome["checks"]:
        if check["ok"] is None:
            yield f"| {check['name']} | not made: {check['look_at']} | |"
        else:
            failed = "" if check["ok"] else " **failed**"
            yield f"| {check['name']} | {figure(check['value'])}{failed} | {figure(check['limit'])} |"


if __name__ == "__main__":
    print(page(), end="")
