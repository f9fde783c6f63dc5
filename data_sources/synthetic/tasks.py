"""The synthetic task sets: `load("train" | "heldout" | "unseen")`.

A hash of (function, bug) decides which side a pair belongs to: no pair that is trained on is evaluated on. The names of
the held-out tasks are pairs of pieces that training never shows. `unseen` holds bug classes that are never trained on.
The statement names the failing tests and the files, and nothing of the fix.
"""

from __future__ import annotations

import hashlib
import random
from functools import cache
from importlib import resources
from itertools import takewhile

from slime_swe.data_sources.synthetic.bugs import UNSEEN_CLASSES
from slime_swe.data_sources.synthetic.functions import FunctionTemplate, Mutant, corrupted, scrambled, templates
from slime_swe.data_sources.synthetic.repository import Repository, make_repository
from slime_swe.data_sources.task import CallsOracle, Task, Workspace
from slime_swe.errors import UserError
from slime_swe.patches import make_patch

SCRAMBLED_SITES = (1, 3, 8, 64)
SIZES = {"train": 512, "heldout": 160, "unseen": 96}
TEST_COMMAND = "python3 -I -S -B runtests.py"
RUNNER_PATH = "runtests.py"


def load(split: str) -> list[Task]:
    """The tasks of one split, always the same. Raises `UserError` for an unknown split."""
    if split not in SIZES:
        raise UserError(f"unknown split {split!r} of the synthetic tasks; there are: {', '.join(SIZES)}")
    tasks: list[Task] = []
    attempt = 0
    while len(tasks) < SIZES[split]:
        rng = random.Random(f"embedded {split} {attempt}")  # the text fixes which tasks there are
        repository = draw_repository(rng, split)
        attempt += 1
        if _is_unique(repository.buggy_module.source, repository.modules[repository.bug.module].source):
            tasks.append(_make_task(f"synthetic-{split}-{len(tasks):04d}", split, repository, rng))
    return tasks


def draw_repository(rng: random.Random, split: str) -> Repository:
    """A repository with a bug from one side of the split. The function is drawn first, then the bug class, then the
    bug.
    """
    pools = _pools(split)
    template, by_class = rng.choice(pools)
    mutant = rng.choice(by_class[rng.choice(sorted(by_class))])
    return make_repository(rng, template, mutant, templates(), held_out=split != "train")


def draw_scrambled(rng: random.Random) -> Repository:
    """A repository whose bug is up to `SCRAMBLED_SITES` corruptions of a function, under training names. No task has
    this bug.

    For demonstrations. If many places are wrong, copying the text requires reading it: knowing what is likely does not
    help.
    """
    template = rng.choice([template for template in templates() if corrupted(template)])
    mutant = scrambled(rng, template, rng.choice(SCRAMBLED_SITES))
    return make_repository(rng, template, mutant, templates(), held_out=False)


def _is_unique(before: str, after: str) -> bool:
    """Whether the lines that differ, without the first one's indentation, are found once in `before`; where lines were
    only added or removed, with the line that follows or else precedes."""
    old, new = before.splitlines(), after.splitlines()
    start = _equal_heads(old, new)
    end = _equal_heads(old[start:][::-1], new[start:][::-1])
    if start in (len(old) - end, len(new) - end):
        start, end = (start, end - 1) if end else (start - 1, end)
    return before.count("\n".join(old[start : len(old) - end]).lstrip(" ")) == 1


def _equal_heads(first: list[str], second: list[str]) -> int:
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(first, second, strict=False)))


def statement(rng: random.Random, repository: Repository, failing: list[str]) -> str:
    """What the agent is asked: it says that tests fail, which, and which files there are."""
    opening = rng.choice(("Tests fail", "The build is red", "Please repair this", "A user reports wrong results"))
    paths = [module.path for module in repository.modules]
    return "\n".join([f"{opening}:", *failing[:2], "Files:", *paths])


def failing_tests(repository: Repository) -> tuple[list[str], list[str]]:
    """(FAIL_TO_PASS, PASS_TO_PASS) of a repository, by which calls tell its mutant from the right version."""
    mutant = repository.bug.mutant
    failing: list[str] = []
    passing: list[str] = []
    for number, module in enumerate(repository.modules):
        for position, function in enumerate(module.functions):
            buggy = (number, position) == (repository.bug.module, repository.bug.function)
            killing = {function.template.calls[index] for index in mutant.killed_by} if buggy else set()
            for test, calls in function.tests.items():
                (failing if killing & set(calls) else passing).append(f"{module.test_path}::{test}")
    return failing, passing


def _make_task(task_id: str, split: str, repository: Repository, rng: random.Random) -> Task:
    failing, passing = failing_tests(repository)
    files = repository.files() | {RUNNER_PATH: runner_source()}
    module, right = repository.buggy_module, repository.modules[repository.bug.module].source
    oracle = CallsOracle(
        fail_to_pass=tuple(failing),
        pass_to_pass=tuple(passing),
        protected=tuple(sorted({RUNNER_PATH, *(m.test_path for m in repository.modules)})),
        command=TEST_COMMAND,
        gold_patch=make_patch({module.path: module.source}, {module.path: right}),
        held_out_tests=repository.held_out_tests,
    )
    bug = repository.bug.mutant
    metadata = {
        "bug_class": bug.mutation.bug_class,
        "function": bug.key.partition("\n")[0],
        "pair": hashlib.sha256(bug.key.encode()).hexdigest()[:16],
    }
    return Task(task_id, statement(rng, repository, failing), Workspace(files), oracle, "synthetic", split, metadata)


def runner_source() -> str:
    return (resources.files("slime_swe.data_sources.synthetic") / RUNNER_PATH).read_text(encoding="utf-8")


@cache
def _pools(split: str) -> tuple[tuple[FunctionTemplate, dict[str, list[Mutant]]], ...]:
    """Templates with the mutants that a split may use, by bug class."""
    pools = []
    for template in templates():
        by_class: dict[str, list[Mutant]] = {}
        for mutant in template.mutants:
            if _belongs(mutant, split):
                by_class.setdefault(mutant.mutation.bug_class, []).append(mutant)
        if by_class:
            pools.append((template, by_class))
    return tuple(pools)


def _belongs(mutant: Mutant, split: str) -> bool:
    if mutant.mutation.bug_class in UNSEEN_CLASSES:
        return split == "unseen"
    return split == ("heldout" if mutant.is_held_out else "train")
