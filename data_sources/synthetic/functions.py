"""Function templates with their tests and bugs: source text with placeholders, calls with known answers, mutants."""

from __future__ import annotations

import ast
import copy
import hashlib
import random
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from importlib import resources
from types import FrameType
from typing import Any

from slime_swe import syntax
from slime_swe.data_sources.synthetic.bugs import Edit, Mutation, corruptions, edited, mutations

PLACEHOLDER = re.compile(r"\b[A-Z]+\b")
LARGEST = 4096  # bits of a number, items of a text or a list: what no call with an answer comes near
_FILE = "<template>"
_CALLS = 48  # calls tried per template; those that tell the most mutants apart become tests
_MORE_CALLS = 320  # calls tried per template that are never tests


def _word(rng: random.Random) -> str:
    return "".join(rng.choice("abc") for _ in range(rng.randint(1, 5)))


def _ints(rng: random.Random) -> list[int]:
    return [rng.randint(0, 6) for _ in range(rng.randint(0, 5))]


# Argument values, by kind. Small ranges on purpose: boundaries are hit often.
KINDS: dict[str, Callable[[random.Random], Any]] = {
    "int": lambda rng: rng.randint(0, 6),
    "pos": lambda rng: rng.randint(1, 5),
    "small": lambda rng: rng.randint(0, 3),
    "optint": lambda rng: rng.choice([None, None, rng.randint(2, 9)]),
    "big": lambda rng: rng.randint(3, 12),
    "hundred": lambda rng: rng.choice([50, 100, 120, 200, 250, rng.randint(40, 300)]),
    "year": lambda rng: rng.choice([1900, 2000, 2024, 2023, 2100, 1996]),
    "ints": _ints,
    "lists": lambda rng: [_ints(rng)[:3] for _ in range(rng.randint(0, 3))],
    "word": _word,
    "letter": lambda rng: rng.choice("abc"),
    "words": lambda rng: [_word(rng) for _ in range(rng.randint(0, 4))],
    "dict": lambda rng: {rng.choice("abcd"): rng.randint(0, 6) for _ in range(rng.randint(0, 3))},
    "pairs": lambda rng: [(rng.randint(0, 4), rng.randint(1, 9)) for _ in range(rng.randint(0, 3))],
}


# Argument values from larger ranges. Calls that no test shows have these too, so that there are enough of them.
WIDE_KINDS: dict[str, Callable[[random.Random], Any]] = KINDS | {
    "int": lambda rng: rng.randint(0, 20),
    "pos": lambda rng: rng.randint(1, 12),
    "big": lambda rng: rng.randint(3, 40),
    "hundred": lambda rng: rng.randint(1, 600),
    "year": lambda rng: rng.choice([rng.randint(16, 24) * 100, rng.randint(1600, 2400)]),
    "optint": lambda rng: rng.choice([None, rng.randint(2, 20)]),
    "ints": lambda rng: [rng.randint(0, 20) for _ in range(rng.randint(0, 6))],
}


class RunawayError(Exception):
    """A call's values grow without end, so the call would not return."""


@dataclass(frozen=True)
class Call:
    """One call with its right answer, both as source text: `FN(3, 4)`, `7`."""

    arguments: str
    expected: str


@dataclass(frozen=True)
class Mutant:
    """A wrong version of a function. The calls `killed_by` (indexes into `FunctionTemplate.calls`) distinguish it from
    the right one.
    """

    mutation: Mutation
    key: str
    killed_by: frozenset[int]

    @property
    def is_held_out(self) -> bool:
        """True if this (function, bug) pair is of the held-out quarter: never demonstrated, never trained on."""
        return hashlib.sha256(self.key.encode()).digest()[0] % 4 == 0


@dataclass(frozen=True, eq=False)  # there is one object per template: comparing and hashing it is by identity
class FunctionTemplate:
    """A function as source text with placeholders, and what is known of it."""

    name: str
    kinds: tuple[str, ...]
    source: str
    calls: tuple[Call, ...]
    mutants: tuple[Mutant, ...]

    @property
    def placeholders(self) -> list[str]:
        return sorted(set(PLACEHOLDER.findall(self.source)))


@cache
def templates() -> tuple[FunctionTemplate, ...]:
    """Build every template in `functions.txt`, variants expanded, with calls and mutants worked out."""
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
    rng, defaults = random.Random(f"calls of {name}"), _defaults(source)
    arguments = {repr(_draw(kinds, rng, defaults)): None for _ in range(_CALLS)}
    drawn = [syntax.literal_eval(text) for text in arguments]
    gold = compile_function(source)
    expected = [run_call(gold, values) for values in drawn]
    mutants = _killed(name, mutations(source), drawn, expected)
    calls = tuple(_call(values, answer) for values, answer in zip(drawn, expected, strict=True))
    return FunctionTemplate(name, kinds, source, calls, tuple(mutants))


@cache
def sorted_calls(template: FunctionTemplate, mutant: Mutant) -> tuple[list[Call], list[Call]]:
    """Return the calls on which the mutant is wrong, and the others: the template's, and more that are never tests."""
    wrong = compile_function(mutant.mutation.source)
    failing: list[Call] = []
    passing: list[Call] = []
    for values, call in _all_calls(template):
        (passing if run_call(wrong, values) == call.expected else failing).append(call)
    return failing, passing


@cache
def _all_calls(template: FunctionTemplate) -> tuple[tuple[tuple[Any, ...], Call], ...]:
    """Return all calls with arguments as values; of those that aren't the template's, every other has larger values."""
    rng, defaults = random.Random(f"more calls of {template.name}"), _defaults(template.source)
    ranges = [KINDS, WIDE_KINDS] * (_MORE_CALLS // 2)
    drawn = [_draw(template.kinds, rng, defaults, kinds) for kinds in ranges]
    gold = compile_function(template.source)
    more = {(call := _call(values, run_call(gold, values))).arguments: (values, call) for values in drawn}
    known = {call.arguments: (values, call) for values, call in zip(_answers(template)[0], template.calls, strict=True)}
    return tuple((known | more).values())


def _call(values: tuple[Any, ...], answer: str) -> Call:
    return Call(", ".join(map(repr, values)), answer)


def _defaults(source: str) -> int:
    function = syntax.parse(source).body[0]
    assert isinstance(function, ast.FunctionDef)
    return len(function.args.defaults)


def _draw(
    kinds: tuple[str, ...], rng: random.Random, defaults: int, ranges: Mapping[str, Callable[..., Any]] = KINDS
) -> tuple[Any, ...]:
    """Draw one call's arguments; now and then the last `defaults` of them are left to their default values.

    An `optint` that comes out as None is left to its default, like everything after it.
    """
    values = tuple(ranges[kind](rng) for kind in kinds)
    if defaults and rng.random() < 0.4:
        values = values[: len(values) - defaults]
    return values[: values.index(None)] if None in values else values


def _killed(
    name: str, wrong: Iterable[Mutation], drawn: Sequence[tuple[Any, ...]], expected: Sequence[str]
) -> list[Mutant]:
    """Return the mutants that a call tells from the right version."""
    mutants = []
    for mutation in wrong:
        function = compile_function(mutation.source)
        answers = [run_call(function, values) for values in drawn]
        killed_by = frozenset(i for i, answer in enumerate(answers) if answer != expected[i])
        if killed_by:
            mutants.append(Mutant(mutation, f"{name}\n{mutation.source}", killed_by))
    return mutants


def scrambled(rng: random.Random, template: FunctionTemplate, sites: int) -> Mutant:
    """Make a template with up to `sites` of its corruptions at once, and not one of its mutants; it must have some."""
    single, known = corrupted(template), {mutant.mutation.source for mutant in template.mutants}
    while True:
        edits: list[Edit] = []
        for start, end, text in rng.sample(single, min(sites, len(single))):
            if all(end <= other or start >= other_end for other, other_end, _ in edits):
                edits.append((start, end, text))
        source = edited(template.source, edits)
        with suppress(RunawayError), watched():
            found = _killed(template.name, [Mutation("corruption", source)], *_answers(template))
            if found and source not in known:
                return found[0]


@cache
def corrupted(template: FunctionTemplate) -> tuple[Edit, ...]:
    """Return corruptions of a template, without its mutants: none of them is a task's bug, held out or not."""
    found = corruptions(template.source)
    for mutant in template.mutants:
        found.pop(mutant.mutation.source, None)
    candidates = (Mutation("corruption", source) for source in found)
    return tuple(found[mutant.mutation.source] for mutant in _killed(template.name, candidates, *_answers(template)))


@cache
def _answers(template: FunctionTemplate) -> tuple[list[tuple[Any, ...]], list[str]]:
    """Return the arguments and the right answer of every call."""
    drawn = [syntax.literal_eval(f"({call.arguments},)") for call in template.calls]
    return drawn, [call.expected for call in template.calls]


def compile_function(source: str) -> Callable[..., Any]:
    """Compile the function `FN` of a template. Templates come with this package; nothing an agent wrote gets here."""
    namespace: dict[str, Any] = {}
    exec(compile(source, _FILE, "exec"), namespace)
    return namespace["FN"]  # type: ignore[no-any-return]


def run_call(function: Callable[..., Any], arguments: tuple[Any, ...]) -> str:
    """Return the `repr` of the result, or the name of what is raised. Templates and mutants cannot loop forever."""
    try:
        return repr(function(*copy.deepcopy(arguments)))
    except (ArithmeticError, AttributeError, LookupError, NameError, RuntimeError, TypeError, ValueError) as error:
        return type(error).__name__


@contextmanager
def watched() -> Iterator[None]:
    """Watch calls of a template's function in this context: one whose values grow without end raises `RunawayError`.

    A template with several exchanges may square a number, or append to the list that it iterates over, in each round.
    """
    before = sys.gettrace()
    sys.settrace(_watch)
    try:
        yield
    finally:
        sys.settrace(before)


def _watch(frame: FrameType, event: str, _: Any) -> Callable[..., Any] | None:
    """Look at the variables of a template's function before each of its lines."""
    if frame.f_code.co_filename != _FILE:
        return None
    if event == "line" and any(_size(value) > LARGEST for value in frame.f_locals.values()):
        raise RunawayError
    return _watch


def _size(value: Any) -> int:
    return value.bit_length() if isinstance(value, int) else len(value) if isinstance(value, str | list) else 0
