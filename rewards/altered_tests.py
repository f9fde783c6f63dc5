"""Alter a test so that nothing in its text shows it: one literal of it becomes another one of the same form.

A number gets another digit, a word another letter, and either may become another number or word of the same form that
the file holds; an exception that is expected becomes another one, and so does the class in `isinstance`. No construct
is added, and no operator turned round: `not in` is rarer than `in`, so a reader would know. Quotes, spaces, the number
of digits, trailing zeros, and upper and lower case stay as they are; a single letter may become a digit.

A test has up to `FORMS` altered forms, in an order that is drawn once for a process. First come those that alter what
the test expects, then those that alter anything else in its body or its tables of parameters. Not every altered test
fails (`assert f(1) != 3` becomes `assert f(1) != 4`), so the gold patch shows which forms do
(`rewards.negative_control`). Where a test has no literal and expects no exception or class, such
as `assert is_empty(queue)`, it has no form.

What a reader can still guess:

- That a word is none (`appre`), or that it does not fit its sentence. Half of the words come from the file itself if it
  has some of the same form, so that a list of words is not enough.
- That a number is an unlikely one (a bound becomes one that is harder to meet), or that two literals which belong
  together disagree: a name that is written twice, the rows of a table that count upwards.
- What the test expects, by computing it: of the part of a test for which the code is right, it knows the true form.
"""

from __future__ import annotations

import ast
import builtins
import operator
import random
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from slime_swe import syntax
from slime_swe.rewards.mutation import Mutated, functions_of, parsed
from slime_swe.rewards.source_edits import Edit, Function, apply_edits, replaced, source_of

FORMS = 21  # that a test has at most
_TRIES = 100  # to find as many different ones
_DRAWS = 20  # to find one that is harder to meet
_DIGITS, _VOWELS, _CONSONANTS, _SIGNS = "0123456789", "aeiou", "bcdfghjklmnpqrstvwxyz", "!#&*+,-./:;=?@^|~"
_WORD = re.compile(r"(?<!\\)(?:[A-Za-z]+|[0-9]+)")
_PREFIX = re.compile(r"(?:^|(?<=\s))[rRbBuU]{1,2}(?=['\"])")
_IS_INSTANCE = frozenset({"isinstance", "assertIsInstance"})
_RAISES = frozenset({"raises", "assertRaises", "assertRaisesRegex", "assert_raises"})
_EXCEPTIONS = (
    "AttributeError", "FileNotFoundError", "IndexError", "KeyError", "NotImplementedError", "OSError", "OverflowError",
    "PermissionError", "RuntimeError", "TimeoutError", "TypeError", "ValueError", "ZeroDivisionError",
)  # fmt: skip
_CLASSES = ("bool", "bytes", "dict", "float", "frozenset", "int", "list", "set", "str", "tuple")


@dataclass(frozen=True)
class Vocabulary:
    """The words and numbers of a file's literals, by their form."""

    words: Mapping[str, Sequence[str]]

    @classmethod
    def of(cls, texts: Collection[str]) -> Vocabulary:
        found: dict[str, list[str]] = {}
        for word in sorted({word for text in texts for word in _WORD.findall(text)}):
            found.setdefault(_form(word), []).append(word)
        return cls(found)

    def alter(self, text: str, rng: random.Random) -> str:
        """The text with another word or number in the place of one of its own, or another sign if it has none; the same
        text if it has none either."""
        prefixes = {found.start() for found in _PREFIX.finditer(text)}
        if not (words := [word for word in _WORD.finditer(text) if word.start() not in prefixes]):
            signs = [at for at, letter in enumerate(text) if letter in _SIGNS and text[at - 1 : at] != "\\"]
            return _with(text, rng.choice(signs), _SIGNS, rng) if signs else text
        chosen = rng.choice([word for word in words if word[0].isdigit()] or words)
        return text[: chosen.start()] + self._other(chosen[0], rng) + text[chosen.end() :]

    def _other(self, word: str, rng: random.Random) -> str:
        known = [other for other in self.words.get(_form(word), ()) if other != word]
        return rng.choice(known) if known and rng.randrange(2) else _near(word, rng)


def _form(word: str) -> str:
    """What a word has in common with those that may stand in its place: digits and trailing zeros, or letter case."""
    if word.isdigit():
        return f"{len(word)} digits, {len(word) - len(word.rstrip('0')) if len(word) > 1 else 0} zeros"
    case = "upper" if word.isupper() else "lower" if word.islower() else "title" if word.istitle() else "mixed"
    return f"{case} {min(len(word), 3) if len(word) < 4 else 4 + len(word) // 4}"


def _near(word: str, rng: random.Random) -> str:
    """The word with another letter, or the number with another digit, of the same kind. A single letter may become a
    digit: where code refuses the one, it may take the other."""
    if len(word) == 1 and word.isalpha() and rng.randrange(3) == 0:
        return rng.choice(_DIGITS)
    at = rng.randrange(len(word.rstrip("0")) or 1) if word.isdigit() else rng.randrange(len(word))
    old = word[at].lower()
    kind = next(letters for letters in (_DIGITS, _VOWELS, _CONSONANTS) if old in letters)
    if word.isdigit() and len(word) > 1 and (at == 0 or not word[at + 1 :].strip("0")):
        kind = _DIGITS[1:]  # neither a leading zero nor one more trailing one
    new = _with(word.lower(), at, kind, rng)[at]
    return word[:at] + (new.upper() if word[at].isupper() else new) + word[at + 1 :]


def _with(text: str, at: int, kind: str, rng: random.Random) -> str:
    """The text with another character of a kind in this place."""
    return text[:at] + rng.choice([letter for letter in kind if letter != text[at]]) + text[at + 1 :]


def alter(source: bytes, forms: Mapping[str, int], seed: str, shown: bytes = b"") -> Mutated:
    """The test file with these tests (ids), each in the form of its number. A test that is not found or does not have
    so many forms stays as it is. seed: decides what the forms are. shown: the file as agents see it; of a test that
    they see in part, the rest is altered if it has a literal."""
    text, module = parsed(source)
    functions = functions_of(module)
    lines = text.split(b"\n")
    chosen: dict[int, tuple[Function, str, set[str]]] = {}  # one may be inherited by several classes
    for test in forms:
        name = re.sub(r"\[.*", "", test.partition("::")[2], flags=re.DOTALL)
        if (function := functions.get(name)) is not None:
            chosen.setdefault(id(function), (function, name, set()))[2].add(test)
    if not chosen:
        return Mutated(source)
    file = _File(module, lines, {ast.dump(node) for f in functions_of(parsed(shown)[1]).values() for node in f.body})
    edits: list[Edit] = []
    altered: list[frozenset[str]] = []
    for function, _, tests in chosen.values():
        number = min(forms[test] for test in tests)
        found = file.forms(function, random.Random(f"{seed} {function.name} {function.lineno}"), number + 1)
        if number < len(found):
            edits += found[number]
            altered.append(frozenset(tests))
    line_end = b"\r\n" if b"\r\n" in source else b"\n"
    made = b"\n".join(apply_edits(lines, set(edits))).replace(b"\n", line_end)
    return Mutated(made, tuple(altered)) if altered else Mutated(source)


@dataclass
class _Sites:
    """Where a test may be altered. Each is what is altered together: one literal, or one in each row of a table."""

    expected: list[list[ast.expr]] = field(default_factory=list)
    others: list[list[ast.expr]] = field(default_factory=list)
    rows: list[list[ast.expr]] = field(default_factory=list)

    def extend(self, more: _Sites) -> None:
        self.expected += more.expected
        self.others += more.others


class _File:
    """A test file, and how its tests may be altered. known: dumps of the statements that agents see."""

    def __init__(self, module: ast.Module, lines: list[bytes], known: Collection[str]) -> None:
        self._module, self._lines, self._known = module, lines, known
        literals = [node for node in _inner(module) if _is_literal(node)]
        self._vocabulary = Vocabulary.of([self._text(node) for node in literals])
        self._bounds = {id(side): keeps for node in ast.walk(module) for side, keeps in _bounds(node)}
        self._reads = list(_read(module))
        named = [found for node in ast.walk(module) for found in _named(node)]
        self._raised = {id(node) for node, is_raised in named if is_raised}
        self._exceptions, self._classes = (
            sorted({self._text(node) for node, is_raised in named if is_raised == wanted}) for wanted in (True, False)
        )

    def forms(self, function: Function, rng: random.Random, count: int) -> list[list[Edit]]:
        """The first `count` ones."""
        unknown = [statement for statement in function.body if ast.dump(statement) not in self._known]
        sites = self._sites(unknown)
        if not (sites.expected or sites.others):
            sites = self._sites(function.body)
        sites.extend(self._constants(function))
        sites.rows = [cells for decorator in function.decorator_list for cells in _rows(decorator)]
        found: list[list[Edit]] = []
        order = (sites.expected, FORMS // 2), (sites.others, FORMS), (sites.expected, FORMS), (sites.rows, FORMS)
        for some, most in order:
            for _ in range(_TRIES if some else 0):
                if len(found) >= min(most, count):
                    break
                made = [edit for node in rng.choice(some) for edit in self._altered(node, rng)]
                if made and made not in found:
                    found.append(made)
        return found

    def _sites(self, statements: Sequence[ast.stmt]) -> _Sites:
        sites = _Sites()
        for statement in statements:
            if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
                continue  # a docstring
            said = {id(node) for part in ast.walk(statement) for kept in _messages(part) for node in ast.walk(kept)}
            wanted = {id(node) for part in ast.walk(statement) for side in _expected(part) for node in _inner(side)}
            for part in ast.walk(statement):
                if members := [node for node in _members(part) if _is_literal(node)]:
                    sites.expected.append(members)
                    said.update(map(id, members))
            for node in _inner(statement):
                if _is_literal(node) and id(node) not in said:
                    (sites.expected if id(node) in wanted else sites.others).append([node])
            sites.expected += [[name] for part in ast.walk(statement) for name, _ in _named(part)]
        return sites

    def _constants(self, function: Function) -> _Sites:
        """The module's constants and functions that this test alone reads."""
        own = list(_read(function))
        sites = _Sites()
        for statement in self._module.body:
            match statement:
                case ast.Assign(targets=[ast.Name(id=name)], value=value) if name in own:
                    if own.count(name) == self._reads.count(name):
                        sites.expected += [[node] for node in _inner(value) if _is_literal(node)]
                case ast.FunctionDef(name=name, decorator_list=[], body=body) if name in own:
                    if own.count(name) == self._reads.count(name):
                        sites.extend(self._sites(body))
        return sites

    def _altered(self, node: ast.expr, rng: random.Random) -> list[Edit]:
        old, bound = self._text(node), self._bounds.get(id(node))
        if isinstance(node, ast.Name | ast.Attribute):
            known = (self._exceptions, _EXCEPTIONS) if id(node) in self._raised else (self._classes, _CLASSES)
            names = [name for name in rng.choice(known) if _differs(name, old)]
            return [replaced(node, rng.choice(names).encode())] if names else []
        for _ in range(_DRAWS):
            new = self._vocabulary.alter(old, rng)
            if _is_other(old, new) and (not bound or bound(syntax.literal_eval(new), syntax.literal_eval(old))):
                return [replaced(node, new.encode())]
        return []

    def _text(self, node: ast.expr) -> str:
        return source_of(node, self._lines).decode()


def _is_literal(node: ast.AST) -> bool:
    """A number or a text."""
    return isinstance(node, ast.Constant) and type(node.value) in (int, float, str, bytes)


def _read(tree: ast.AST) -> Iterator[str]:
    return (node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load))


def _inner(node: ast.AST) -> Iterator[ast.expr]:
    """The expressions in a node, but for those in formatted strings, whose places are not known, and docstrings."""
    waiting: list[ast.AST] = [node]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)):
            continue
        if isinstance(node, ast.expr):
            yield node
        waiting += ast.iter_child_nodes(node)


def _messages(node: ast.AST) -> Iterator[ast.expr]:
    """What is said where a test fails."""
    match node:
        case ast.Assert(msg=ast.expr() as message):
            yield message
        case ast.Raise(exc=ast.expr() as raised):
            yield raised
        case ast.Call(func=ast.Attribute(attr="fail"), args=said):
            yield from said
        case ast.Call(keywords=keywords):
            yield from (keyword.value for keyword in keywords if keyword.arg in ("msg", "err_msg", "reason"))


def _expected(node: ast.AST) -> Iterator[ast.expr]:
    """The parts of a test that say what is expected: a side of a comparison that calls nothing, what is approximated,
    the pattern of a message."""
    match node:
        case ast.Compare(left=left, comparators=sides):
            yield from (side for side in (left, *sides) if _is_plain(side))
        case ast.Call(func=ast.Attribute(attr=name) | ast.Name(id=name), args=sides, keywords=keywords):
            yield from (keyword.value for keyword in keywords if keyword.arg == "match")
            if name == "approx" or (name.startswith(("assert", "check", "expect")) and len(sides) > 1):
                yield from (side for side in sides if _is_plain(side))


def _bounds(node: ast.AST) -> Iterator[tuple[ast.expr, Callable[[Any, Any], bool]]]:
    """The numbers that a value must be above or below, and which other one of two is harder to meet."""
    match node:
        case ast.Compare(left=left, ops=[ast.Gt() | ast.GtE() | ast.Lt() | ast.LtE() as sign], comparators=[right]):
            up = isinstance(sign, ast.Gt | ast.GtE)
            for side, harder in (right, operator.gt if up else operator.lt), (left, operator.lt if up else operator.gt):
                if _is_literal(side):
                    yield side, harder


def _members(node: ast.AST) -> Iterator[ast.expr]:
    """What is written out of a container that a value is looked for in."""
    match node:
        case ast.Compare(ops=[ast.In()], comparators=[ast.List() | ast.Tuple() | ast.Set() | ast.Dict() as container]):
            yield from _inner(container)


def _is_plain(node: ast.expr) -> bool:
    called = [inner for inner in ast.walk(node) if isinstance(inner, ast.Call)]
    return all(isinstance(call.func, ast.Attribute | ast.Name) and "approx" in ast.dump(call.func) for call in called)


def _named(node: ast.AST) -> Iterator[tuple[ast.expr, bool]]:
    """The names of the exception or the class that is expected, and whether it is an exception."""
    match node:
        case ast.Call(func=ast.Attribute(attr=name) | ast.Name(id=name), args=[error, *_]) if name in _RAISES:
            yield from ((one, True) for one in _names(error))
        case ast.Call(func=ast.Attribute(attr=name) | ast.Name(id=name), args=[_, kind, *_]) if name in _IS_INSTANCE:
            yield from ((one, False) for one in _names(kind))


def _names(node: ast.expr) -> Iterator[ast.expr]:
    """A class, where there is but one."""
    match node:
        case ast.Name() | ast.Attribute(value=ast.Name()):
            yield node


def _differs(name: str, true: str) -> bool:
    """Whether a class is no other name, base or kind of the true one, as far as Python knows both."""
    classes = [getattr(builtins, one, None) for one in (name, true)]
    if not all(isinstance(one, type) for one in classes):
        return name != true
    return not (issubclass(classes[0], classes[1]) or issubclass(classes[1], classes[0]))  # type: ignore[arg-type]


def _is_other(old: str, new: str) -> bool:
    """Whether the new text is a literal, of the same type, and not equal to the old one."""
    try:
        true, made = syntax.literal_eval(old), syntax.literal_eval(new)
    except (SyntaxError, ValueError):
        return False
    return type(true) is type(made) and bool(true != made)


def _rows(decorator: ast.expr) -> Iterator[list[ast.expr]]:
    """A literal of each row of a table of parameters: the first ones of all rows, the second ones, and so on."""
    match decorator:
        case ast.Call(args=[*_, ast.List(elts=rows) | ast.Tuple(elts=rows)]):
            columns = [[node for node in _inner(row) if _is_literal(node)] for row in rows]
            yield from (list(cells) for cells in zip(*columns, strict=False))
