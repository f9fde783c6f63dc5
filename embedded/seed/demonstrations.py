"""Demonstrations for the seed policy: the format of an episode, exact copying, and edits that are mostly wrong.

Each is a transcript of the native agent on a training repository: look at the module, write it anew with one function
changed, run the tests, try another change if they fail, submit. A change is the right one in `gold_share` of the cases
and otherwise a random legal mutation, mostly of the failing function. So the policy learns to act and to copy but is
mediocre at choosing: that is left for reinforcement learning. Only (function, bug) pairs, bug classes and names of the
training split occur.
"""

from __future__ import annotations

import random
from collections.abc import Sequence, Set
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from typing import Any

from slime_swe.data_sources.synthetic.bugs import TRAINED_CLASSES, Mutation, mutations
from slime_swe.data_sources.synthetic.functions import (
    Call,
    FunctionTemplate,
    RunawayError,
    compile_function,
    run_call,
    watched,
)
from slime_swe.data_sources.synthetic.runtests import shorten
from slime_swe.data_sources.synthetic.tasks import (
    PIECES,
    Function,
    Repository,
    draw_repository,
    draw_scrambled,
    failing_tests,
    statement,
)
from slime_swe.embedded.train_data import TrainData
from slime_swe.rollout.tools import TOOLS

SYSTEM_PROMPT = "Repair the code."
SCRAMBLED_SHARE = 0.7  # of the demonstrations: some tokens of a function are exchanged, which is no task's bug
GOLD_SHARE = 0.4
IN_FAILING_FUNCTION = 0.8  # of the random edits
MAX_EDITS = 3
RETRY_SHARE = 0.7  # of the failed edits: try another
SKIP_TESTS_SHARE = 0.1
CACHED = 20_000


@dataclass(frozen=True)
class Part:
    """A run of text that the policy says (`action`) or is shown."""

    text: str
    action: bool


@dataclass(frozen=True)
class Edit:
    """The module as an edit writes it, and the source of each of its functions' templates after that."""

    text: str
    sources: list[str]


def demonstration(rng: random.Random, gold_share: float = GOLD_SHARE) -> list[Part]:
    """Write one transcript in the exact text that the seed policy's chat template and the native agent's tools give."""
    script = Script.draw(rng, scrambled_share=SCRAMBLED_SHARE)
    play(rng, script, gold_share)
    return script.parts


def play(rng: random.Random, script: Script, gold_share: float = GOLD_SHARE) -> None:
    """Write the policy's part of an opened transcript, with what each call shows."""
    for _ in range(MAX_EDITS):
        script.edit(_choose(rng, script, gold_share))
        if rng.random() < SKIP_TESTS_SHARE or script.run_tests() or rng.random() >= RETRY_SHARE:
            break
    script.call("submit")


def gold_edit(script: Script) -> Edit:
    """Return the edit that puts the right version of the buggy function in the place of the wrong one."""
    index = script.repository.bug.function
    return script.rewrite(index, script.module.functions[index].template.source)


def _choose(rng: random.Random, script: Script, gold_share: float) -> Edit:
    """Take the right fix in `gold_share` of the cases, else a random legal mutation of a function as it was looked at.

    A mutation is never what the module is already, nor what would not come back from a test.
    """
    if rng.random() < gold_share:
        return gold_edit(script)
    while True:
        index = script.repository.bug.function
        if rng.random() >= IN_FAILING_FUNCTION:
            index = rng.randrange(len(script.buggy))
        by_class = _legal_edits(script.module.functions[index].template, script.buggy[index])
        if not by_class:
            continue
        source = rng.choice(by_class[rng.choice(sorted(by_class))]).source
        edit = script.rewrite(index, source)
        if edit.sources != script.sources and _comes_back(script.module.functions[index], source):
            return edit


@lru_cache(CACHED)
def _legal_edits(template: FunctionTemplate, source: str) -> dict[str, list[Mutation]]:
    """Return mutations of `source` by trained classes that do not spell out a held-out bug, by bug class."""
    held_out = {mutant.mutation.source for mutant in template.mutants if mutant.is_held_out}
    legal: dict[str, list[Mutation]] = {}
    for mutation in mutations(source):
        if mutation.bug_class in TRAINED_CLASSES and mutation.source not in held_out:
            legal.setdefault(mutation.bug_class, []).append(mutation)
    return legal


class Script:
    """`Script` writes a transcript on one repository.

    It knows each function of the buggy module as it was looked at (`buggy`) and as the last edit left it (`sources`).
    """

    def __init__(self, repository: Repository) -> None:
        self.repository = repository
        self.parts: list[Part] = []
        self.module = repository.modules[repository.bug.module]
        self.buggy = [function.template.source for function in self.module.functions]
        self.buggy[repository.bug.function] = repository.bug.mutant.mutation.source
        self.sources = list(self.buggy)

    @classmethod
    def draw(cls, rng: random.Random, split: str = "train", scrambled_share: float = 0.0) -> Script:
        """Draw a repository of the split, with the task stated and its buggy module looked at."""
        scramble = rng.random() < scrambled_share
        script = cls(draw_scrambled(rng) if scramble else draw_repository(rng, split))
        script.open(statement(rng, script.repository, failing_tests(script.repository)[0]))
        script.call("view", path=script.module.path)
        script.show(script.repository.buggy_module.source.rstrip("\n"))
        return script

    def rewrite(self, index: int, template_source: str) -> Edit:
        """Return the edit that changes one function of the module as it was looked at to a version of its template."""
        sources = [*self.buggy[:index], template_source, *self.buggy[index + 1 :]]
        functions = zip(self.module.functions, sources, strict=True)
        return Edit("\n\n".join(function.render(source) for function, source in functions), sources)

    def open(self, text: str) -> None:
        signatures = " ".join(f"{tool.spec.name}({', '.join(tool.spec.parameters)})" for tool in TOOLS)
        self._shown(
            f"<|im_start|>system\n{SYSTEM_PROMPT}\nTools: {signatures}<|im_end|>\n"
            f"<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n"
        )

    def call(self, name: str, **arguments: str) -> None:
        parameters = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in arguments.items())
        call = f"<tool_call>\n<function={name}>\n{parameters}</function>\n</tool_call><|im_end|>"
        self.parts.append(Part(call, action=True))

    def show(self, result: str) -> None:
        self._shown(
            f"\n<|im_start|>user\n<tool_response>\n{result}\n</tool_response><|im_end|>\n<|im_start|>assistant\n"
        )

    def edit(self, edit: Edit) -> None:
        self.call("str_replace", path=self.module.path, new_str=edit.text.rstrip("\n"))
        self.show(f"Edited {self.module.path}")
        self.sources = edit.sources

    def run_tests(self) -> bool:
        """Run every test on the functions as they are now; write the runner's output; say whether all passed."""
        lines, passed = [], 0
        for number, module in sorted(enumerate(self.repository.modules), key=lambda item: item[1].test_path):
            for position, function in enumerate(module.functions):
                source = function.template.source
                if number == self.repository.bug.module:
                    source = self.sources[position]
                for test, calls in function.tests.items():
                    failure = _first_failure(source, calls)
                    passed += failure is None
                    if failure is not None:
                        lines.append(f"FAILED {module.test_path}::{test} - {failure}")
        counts = [f"{passed} passed"] * bool(passed) + [f"{len(lines)} failed"] * bool(lines)
        self.call("run_tests")
        ending = ["[exit code 1]"] if lines else []
        self.show("\n".join([*lines, ", ".join(counts), *ending]))
        return not lines

    def _shown(self, text: str) -> None:
        self.parts.append(Part(text, action=False))


def _comes_back(function: Function, source: str) -> bool:
    try:
        for calls in function.tests.values():
            _first_failure(source, calls)
    except RunawayError:
        return False
    return True


def _first_failure(source: str, calls: tuple[Call, ...]) -> str | None:
    """Return what `runtests.py` says of the first call that goes wrong; None where all are right."""
    for call in calls:
        answer = _answer(source, call.arguments)
        if answer != call.expected:
            if answer.endswith("Error"):
                return answer
            return f"assert {shorten(answer)} == {shorten(call.expected)}"
    return None


@lru_cache(CACHED)
def _answer(source: str, arguments: str) -> str:
    with watched():
        return run_call(compile_function(source), eval(f"({arguments},)"))  # arguments are literals of our own


# Demonstrations as training data.
MICRO_BATCH = 8192  # rows at most
CONTEXT_WEIGHT = 0.25  # of the language-model loss on what the policy is shown, beside 1 on what it says


@dataclass(frozen=True)
class Batch:
    """Demonstrations as training data in which every token but a sequence's first is predicted.

    Each of those has its loss weight, and whether it is a piece of a name that its sequence has shown before.
    """

    data: TrainData
    weights: list[list[float]]
    repeats: list[list[bool]]


def pack(tokenizer: Any, transcripts: Sequence[Sequence[Part]]) -> Batch:
    """Tokenise transcripts part by part, as the agent loop does."""
    encode = tokenizer.backend_tokenizer.encode
    names = set(tokenizer.convert_tokens_to_ids([*PIECES, *(f"_{piece}" for piece in PIECES)]))
    tokens: list[list[int]] = []
    weights: list[list[float]] = []
    repeats: list[list[bool]] = []
    for transcript in transcripts:
        parts = [encode(part.text, add_special_tokens=False).ids for part in transcript]
        tokens.append(list(chain.from_iterable(parts)))
        weight_of = (1.0 if part.action else CONTEXT_WEIGHT for part in transcript)
        weights.append([weight for weight, ids in zip(weight_of, parts, strict=True) for _ in ids][1:])
        repeats.append(_repeats(tokens[-1], names)[1:])
    masks = [[1] * len(row) for row in weights]
    count = len(tokens)
    return Batch(
        TrainData(tokens, masks, [], [0.0] * count, list(range(count)), list(map(len, masks))), weights, repeats
    )


def _repeats(tokens: Sequence[int], names: Set[int]) -> list[bool]:
    """Say of each token whether it is one of `names` and has been there before."""
    first = {token: place for place, token in reversed(list(enumerate(tokens)))}
    return [token in names and first[token] < place for place, token in enumerate(tokens)]
