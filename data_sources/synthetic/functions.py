"""Function templates with their tests and bugs: source text with placeholders, calls with known answers, mutants."""

from __future__ import annotations

import ast
import hashlib
import random
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from importlib import resources
from itertools import takewhile
from types import FrameType
from typing import Any

from slime_swe.data_sources.synthetic.arguments import draw
from slime_swe.data_sources.synthetic.bugs import Mutation, corruptions, mutations

PLACEHOLDER = re.compile(r"\b[A-Z]+\b")
LARGEST = 4096  # bits of a number, items of a text or a list: what no call with an answer comes near
_FILE = "<template>"
_CALLS = 48  # calls tried per template; those that tell the most mutants apart become tests


class RunawayError(Exception):
    """A call's values grow without end, so that it would not come back."""


@dataclass(frozen=True)
class Call:
    """One call with its right answer, both as source text: `FN(3, 4)`, `7`."""

    arguments: str
    expected: str


@dataclass(frozen=True)
class Mutant:
    """A wrong version that the calls `killed_by` (indexes into `FunctionTemplate.calls`) tell from the right one."""

    mutation: Mutation
    key: str
    killed_by: frozenset[int]

    @property
    def is_held_out(self) -> bool:
        """Whether this (function, bug) pair belongs to the held-out quarter: never demonstrated, never trained on."""
        return hashlib.sha256(self.key.encode()).digest()[0] % 4 == 0


@dataclass(frozen=True, eq=False)  # there is one object per template: comparing and hashing it is by identity
class FunctionTemplate:
    """A function as source text with placeholders, and what is known of it."""

    name: str
    source: str
    calls: tuple[Call, ...]
    mutants: tuple[Mutant, ...]

    @property
    def placeholders(self) -> list[str]:
        return sorted(set(PLACEHOLDER.findall(self.source)))


@cache
def templates() -> tuple[FunctionTemplate, ...]:
    """Every template in `functions.txt`, variants expanded, with calls and mutants worked out."""
    text = (resources.files("slime_swe.data_sources.synthetic") / "functions.txt").read_text(encoding="utf-8")
    return tuple(_build(name, kinds, source) for name, kinds, source in _parse(text))


def _parse(text: str) -> Iterator[tuple[str, tuple[str, ...], str]]:
    for block in text.split("\n## ")[1:]:
        header, source = block.split("\n", 1)
        head, _, variants = header.partition("|")
        name, *kinds = head.split()
        if not variants:
            yield name, tuple(kinds), source.strip() + "\n"
        for variant in filter(None, variants.split(";")):
            word, _, code = (part.strip() for part in variant.partition("="))
            filled = source.replace("{word}", word).replace("{code}", code)
            yield f"{name}:{word.lower().replace(' ', '_')}", tuple(kinds), filled.strip() + "\n"


def _build(name: str, kinds: tuple[str, ...], source: str) -> FunctionTemplate:
    function = ast.parse(source).body[0]
    assert isinstance(function, ast.FunctionDef)
    rng = random.Random(f"calls of {name}")
    arguments = {repr(draw(kinds, rng, len(function.args.defaults))): None for _ in range(_CALLS)}
    drawn = [ast.literal_eval(text) for text in arguments]
    gold = compile_function(source)
    expected = [run_call(gold, values) for values in drawn]
    mutants = _killed(name, mutations(source), drawn, expected)
    calls = tuple(Call(", ".join(map(repr, values)), answer) for values, answer in zip(drawn, expected, strict=True))
    return FunctionTemplate(name, source, calls, tuple(mutants))


def _killed(
    name: str, candidates: Sequence[Mutation], drawn: Sequence[tuple[Any, ...]], expected: Sequence[str]
) -> list[Mutant]:
    """Those of the candidates that a call tells from the right version."""
    mutants = []
    for mutation in candidates:
        wrong = compile_function(mutation.source)
        answers = [run_call(wrong, values) for values in drawn]
        killed_by = frozenset(i for i, answer in enumerate(answers) if answer != expected[i])
        if killed_by:
            mutants.append(Mutant(mutation, f"{name}\n{mutation.source}", killed_by))
    return mutants


def scrambled(rng: random.Random, template: FunctionTemplate, sites: int) -> Mutant:
    """A template with up to `sites` of its corruptions at once, and not one of its mutants; it must have some."""
    single, known = corrupted(template), {mutant.mutation.source for mutant in template.mutants}
    while True:
        chosen = rng.sample(single, min(sites, len(single)))
        source = _merged(template.source, [mutant.mutation.source for mutant in chosen])
        with suppress(RunawayError), watched():
            found = _killed(template.name, [Mutation("corruption", source)], *_answers(template))
            if found and source not in known:
                return found[0]


def _merged(source: str, versions: Sequence[str]) -> str:
    """`source` with what each version changes in it; of changes to one place, the first."""
    changes: dict[tuple[int, int], str] = {}
    for version in versions:
        start, end, text = _change(source, version)
        if all(end <= other_start or start >= other_end for other_start, other_end in changes):
            changes[start, end] = text
    for (start, end), text in sorted(changes.items(), reverse=True):
        source = source[:start] + text + source[end:]
    return source


def _change(before: str, after: str) -> tuple[int, int, str]:
    """(start, end, text): `after` has `text` instead of the words `before[start:end]`."""
    pieces, others = (re.findall(r"\w+|\W", text) for text in (before, after))
    same = _equal_heads(pieces, others)
    rest = _equal_heads(pieces[same:][::-1], others[same:][::-1])
    start, end = (len("".join(part)) for part in (pieces[:same], pieces[: len(pieces) - rest]))
    return start, end, "".join(others[same : len(others) - rest])


def _equal_heads(a: Sequence[str], b: Sequence[str]) -> int:
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(a, b, strict=False)))


@cache
def corrupted(template: FunctionTemplate) -> tuple[Mutant, ...]:
    """Corruptions of a template, without its mutants: none of them is a task's bug, held out or not."""
    known = {mutant.mutation.source for mutant in template.mutants}
    candidates = [mutation for mutation in corruptions(template.source) if mutation.source not in known]
    return tuple(_killed(template.name, candidates, *_answers(template)))


@cache
def _answers(template: FunctionTemplate) -> tuple[list[tuple[Any, ...]], list[str]]:
    """The arguments and the right answer of every call."""
    drawn = [ast.literal_eval(f"({call.arguments},)") for call in template.calls]
    return drawn, [call.expected for call in template.calls]


def compile_function(source: str) -> Callable[..., Any]:
    """The function `FN` of a template's source. Templates come with this package; nothing an agent wrote gets here."""
    namespace: dict[str, Any] = {}
    exec(compile(source, _FILE, "exec"), namespace)
    return namespace["FN"]  # type: ignore[no-any-return]


def run_call(function: Callable[..., Any], arguments: tuple[Any, ...]) -> str:
    """`repr` of what the function returns, or the name of what it raises. Templates and mutants cannot loop forever."""
    try:
        return repr(function(*ast.literal_eval(repr(arguments))))
    except (ArithmeticError, AttributeError, LookupError, NameError, RuntimeError, TypeError, ValueError) as error:
        return type(error).__name__


@contextmanager
def watched() -> Iterator[None]:
    """In here, a call of a template's function whose values grow without end raises `RunawayError`.

    What several exchanges make of a template may square a number, or append to the list it goes over, in each round.
    """
    before = sys.gettrace()
    sys.settrace(_watch)
    try:
        yield
    finally:
        sys.settrace(before)


def _watch(frame: FrameType, event: str, _: Any) -> Callable[..., Any] | None:
    """Looks at the variables of a template's function before each of its lines."""
    if frame.f_code.co_filename != _FILE:
        return None
    if event == "line" and any(_size(value) > LARGEST for value in frame.f_locals.values()):
        raise RunawayError
    return _watch


def _size(value: Any) -> int:
    return value.bit_length() if isinstance(value, int) else len(value) if isinstance(value, str | list) else 0
