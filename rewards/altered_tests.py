"""Alter a test so that nothing in its text shows it: one literal of it becomes another one of the same form.

| what is altered | becomes |
| --- | --- |
| a number, a word | another digit or letter of it, or another number or word of the same form that the file holds |
| `True`, `False` | the other one |
| an exception that is expected, the class in `isinstance` | another one |
| `is None`, `assertTrue`, `assertIsNone` | the opposite: tests have both about as often |
| an object, `a = Node(1)` | another one in reach that the same call makes |
| a call that stands alone, `queue.pop()`, or an attribute that is set | nothing: the line is left out |
| a JSON file that the test reads | one literal of each of its records (`alter_data`) |

Quotes, spaces, the number of digits, trailing zeros, and upper and lower case stay as they are; a single letter may
become a digit. No other operator is turned round: `not in` is rarer than `in`, so a reader would know.

A test has up to `FORMS` altered forms, in an order that is drawn once for a process. First come those that alter what
the test expects, in one place or in two: code that is right fails them for certain. Then come those that alter anything
else in its body, and its tables of parameters. Not every altered test fails (`assert f(1) != 3` becomes
`assert f(1) != 4`), so the gold patch shows which forms do (`rewards.negative_control`). Where a test has none of
these, such as `assert f(x)`, it has no form.

What a reader can still guess:

- That a word is none (`appre`), or that it does not fit its sentence. Half of the words come from the file itself if it
  has some of the same form, so that a list of words is not enough.
- That a number is an unlikely one (a bound becomes one that is harder to meet), or that two literals which belong
  together disagree: a name that is written twice, the rows of a table that count upwards.
- Where a test expects one truth value alone, or all of them are the same: which of the two is the usual one.
- What the test expects, by computing it: of the part of a test for which the code is right, it knows the true form.
"""

from __future__ import annotations

import ast
import builtins
import itertools
import operator
import random
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from slime_swe import syntax
from slime_swe.rewards.mutation import functions_of, name_of, parsed
from slime_swe.rewards.source_edits import Edit, Function, apply_edits, replaced, source_of, span, text_of

FORMS = 30  # that a test has at most
_TRIES = 100  # to find as many different ones
_PAIRED = 12  # expected values of which two are altered at once
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
_OPPOSITES = {"assertTrue": "assertFalse", "assertIsNone": "assertIsNotNone"}
_OPPOSITE = _OPPOSITES | {opposite: name for name, opposite in _OPPOSITES.items()}
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
        """Return the text with another word or number in the place of one of its own, or another sign if it has none;
        the same text if it has none either."""
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
    """Return the form that a word shares with its substitutes: digits and trailing zeros, or letter case and length."""
    if word.isdigit():
        return f"{len(word)} digits, {len(word) - len(word.rstrip('0')) if len(word) > 1 else 0} zeros"
    case = "upper" if word.isupper() else "lower" if word.islower() else "title" if word.istitle() else "mixed"
    return f"{case} {min(len(word), 3) if len(word) < 4 else 4 + len(word) // 4}"


def _near(word: str, rng: random.Random) -> str:
    """Return the word with another letter, or the number with another digit, of the same kind. A single letter may
    become a digit: where code refuses the one, it may take the other."""
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
    """Return the text with another character of a kind in this place."""
    return text[:at] + rng.choice([letter for letter in kind if letter != text[at]]) + text[at + 1 :]


@dataclass(frozen=True)
class Altered:
    """A test file in other forms. beyond: the tests (ids) of each function that has no form of its number, and by how
    much their number is too large, from 0."""

    text: bytes
    functions: tuple[frozenset[str], ...] = ()
    beyond: Mapping[frozenset[str], int] = field(default_factory=dict)


def alter(
    source: bytes,
    forms: Mapping[str, int],
    seed: str,
    shown: bytes = b"",
    deciding: Collection[str] = (),
    most: int = FORMS,
) -> Altered:
    """Alter these tests (ids) of a test file, each into the form of its number. A test that is not found or does not
    have so many forms stays as it is.

    seed: decides what the forms are. shown: the file as agents see it; of a test that they see in part, the rest is
    altered if it has a literal. deciding: other tests (ids) that may be altered, the same in all calls: what two of
    them read stays. most: how many forms a test has at most.
    """
    text, module = parsed(source)
    functions = functions_of(module)
    lines = text.split(b"\n")
    chosen: dict[int, tuple[Function, set[str]]] = {}  # one may be inherited by several classes
    for test in forms:
        if (function := functions.get(name_of(test))) is not None:
            chosen.setdefault(id(function), (function, set()))[1].add(test)
    if not chosen:
        return Altered(source)
    kept = {id(functions[name]) for name in map(name_of, (*forms, *deciding)) if name in functions}
    others = [function for function in functions.values() if id(function) not in kept]
    file = _File(
        module, lines, others, {ast.dump(node) for f in functions_of(parsed(shown)[1]).values() for node in f.body}
    )
    edits: list[Edit] = []
    altered: list[frozenset[str]] = []
    beyond: dict[frozenset[str], int] = {}
    for function, tests in chosen.values():
        number = min(forms[test] for test in tests)
        rng = random.Random(f"{seed} {function.name} {function.lineno}")
        found = file.forms(function, rng, min(number + 1, most))
        if number < len(found):
            edits += found[number]
            altered.append(frozenset(tests))
        else:
            beyond[frozenset(tests)] = number - len(found)
    line_end = b"\r\n" if b"\r\n" in source else b"\n"
    made = b"\n".join(apply_edits(lines, set(edits))).replace(b"\n", line_end)
    return Altered(made if altered else source, tuple(altered), beyond)


_Site = Sequence[ast.expr | ast.stmt]
_Instead = Mapping[int, Sequence[str]]  # names that may stand in the place of a node, by its identity


@dataclass
class _Sites:
    """The sites to alter in a test. Each is altered as a whole: one literal, or one in each row of a table."""

    expected: list[_Site] = field(default_factory=list)
    objects: list[_Site] = field(default_factory=list)
    others: list[_Site] = field(default_factory=list)
    rows: list[_Site] = field(default_factory=list)

    @property
    def pairs(self) -> list[_Site]:
        """The pairs of expected values to alter at once: one by one, two truth values give too few forms."""
        return [[*one, *other] for one, other in itertools.combinations(self.expected[:_PAIRED], 2)]

    def extend(self, more: _Sites) -> None:
        self.expected += more.expected
        self.others += more.others


class _File:
    """A test file, and how its tests may be altered. others: tests that decide nothing, whatever they are altered to.
    known: dumps of the statements that agents see."""

    def __init__(
        self, module: ast.Module, lines: list[bytes], others: Sequence[Function], known: Collection[str]
    ) -> None:
        self._module, self._lines, self._known = module, lines, known
        words = [node for node in _inner(module) if _is_literal(node) and not _is_truth(node)]
        self._vocabulary = Vocabulary.of([self._text(node) for node in words])
        self._bounds = {id(side): keeps for node in ast.walk(module) for side, keeps in _bounds(node)}
        tests = [function for function in others if function.name.startswith("test")]
        self._reads = Counter(_read(module)) - Counter(name for function in tests for name in _read(function))
        self._turned = {id(node) for part in ast.walk(module) for node in _turned(part)}
        self._made = _made(module)
        named = [found for node in ast.walk(module) for found in _named(node)]
        self._raised = {id(node) for node, is_raised in named if is_raised}
        self._exceptions, self._classes = (
            sorted({self._text(node) for node, is_raised in named if is_raised == wanted}) for wanted in (True, False)
        )

    def forms(self, function: Function, rng: random.Random, count: int) -> list[list[Edit]]:
        """Return the edits of a test's first `count` forms."""
        statements = [statement for statement in function.body if ast.dump(statement) not in self._known]
        instead = self._instead(function)
        sites = self._sites(statements, instead)
        if not (sites.expected or sites.objects or sites.others):
            sites = self._sites(function.body, instead)
        sites.extend(self._constants(function))
        sites.rows = [cells for decorator in function.decorator_list for cells in _rows(decorator)]
        if len(function.body) > 1 + (ast.get_docstring(function, clean=False) is not None):
            sites.objects += [[statement] for statement in statements if self._may_be_left_out(statement)]
        found: list[list[Edit]] = []
        order = (
            *((sites.expected, FORMS // 3), (sites.pairs, FORMS // 3), (sites.objects, 2 * FORMS // 3)),
            *((sites.others, FORMS), (sites.objects, FORMS), (sites.expected, FORMS), (sites.rows, FORMS)),
        )
        for some, most in order:
            for _ in range(_TRIES if some else 0):
                if len(found) >= min(most, count):
                    break
                made = [edit for node in rng.choice(some) for edit in self._altered(node, instead, rng)]
                if made and made not in found:
                    found.append(made)
        return found

    def _sites(self, statements: Sequence[ast.stmt], instead: _Instead) -> _Sites:
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
                elif id(node) in instead:
                    sites.objects.append([node])
            sites.expected += [[name] for part in ast.walk(statement) for name, _ in _named(part)]
            sites.expected += [[node] for part in ast.walk(statement) for node in _turned(part)]
        return sites

    def _constants(self, function: Function) -> _Sites:
        """Return the sites in the module's constants and functions that no other test which decides anything reads."""
        own = Counter(_read(function))
        sites = _Sites()
        for statement in self._module.body:
            match statement:
                case ast.Assign(targets=[ast.Name(id=name)], value=value) if name in own:
                    if own[name] == self._reads[name]:
                        singly = [[node] for node in _inner(value) if _is_literal(node)]
                        sites.expected += list(_columns(value)) or singly
                case ast.FunctionDef(name=name, decorator_list=[], body=body) if name in own:
                    if own[name] == self._reads[name] and not name.startswith("test"):
                        sites.extend(self._sites(body, {}))
        return sites

    def _instead(self, function: Function) -> _Instead:
        """Return, for each object that the test reads, the others in reach that the same call makes."""
        bound = Counter(node.id for node in _names_in(function) if not isinstance(node.ctx, ast.Load))
        own = {name: made for name, made in _made(function).items() if bound[name] == 1}
        known = {**{name: made for name, made in self._made.items() if not bound[name]}, **own}
        found = {}
        for statement in function.body:
            made_before = {name for name in known if name not in own or own[name].end < statement.lineno}
            for node in _names_in(statement):
                if isinstance(node.ctx, ast.Load) and node.id in known:
                    call = known[node.id].call
                    found[id(node)] = sorted(n for n in made_before if n != node.id and known[n].call == call)
        return {key: names for key, names in found.items() if names}

    def _may_be_left_out(self, statement: ast.stmt) -> bool:
        """Say whether a statement is a lone call, or sets an attribute or item, with nothing else on its lines."""
        match statement:
            case ast.Expr(value=ast.Call() | ast.Await()) | ast.Assign(targets=[ast.Attribute() | ast.Subscript()]):
                start, (last, end) = span(statement)
                around = self._lines[start[0] - 1][: start[1]] + self._lines[last - 1][end:]
                return not around.strip() and last < len(self._lines)
        return False

    def _altered(self, node: ast.expr | ast.stmt, instead: _Instead, rng: random.Random) -> list[Edit]:
        if isinstance(node, ast.stmt):
            (first, _), (last, _) = span(node)
            return [Edit((first, 0), (last + 1, 0), b"")]
        if id(node) in self._turned:
            return self._opposite(node)
        if id(node) in instead:
            return [replaced(node, rng.choice(instead[id(node)]).encode())]
        if isinstance(node, ast.Constant) and _is_truth(node):
            return [replaced(node, str(not node.value).encode())]
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

    def _opposite(self, node: ast.expr) -> list[Edit]:
        """Turn what `_turned` yields into its opposite; there is no edit where `is` is not between single spaces."""
        match node:
            case ast.Compare(left=left, comparators=[none]):
                between = Edit(span(left)[1], span(none)[0], b"")
                other = {b" is ": b" is not ", b" is not ": b" is "}.get(text_of(between, self._lines))
                return [replace(between, text=other)] if other else []
            case ast.Attribute(attr=name):
                line, end = span(node)[1]
                return [Edit((line, end - len(name)), (line, end), _OPPOSITE[name].encode())]
        raise AssertionError(ast.dump(node))

    def _text(self, node: ast.expr) -> str:
        return source_of(node, self._lines).decode()


def _is_literal(node: ast.AST) -> bool:
    """Say whether a node is a number, a text, or a truth value."""
    return isinstance(node, ast.Constant) and type(node.value) in (int, float, str, bytes, bool)


def _is_truth(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and type(node.value) is bool


def _turned(node: ast.AST) -> Iterator[ast.expr]:
    """Yield the part of a node that has an opposite which is about as usual."""
    match node:
        case ast.Compare(ops=[ast.Is() | ast.IsNot()], comparators=[ast.Constant(value=None)]):
            yield node
        case ast.Call(func=ast.Attribute(attr=name) as method) if name in _OPPOSITE:
            yield method


@dataclass(frozen=True)
class _Object:
    """An object that a statement makes by a call. call: the function, as `ast.dump` gives it. end: the last line."""

    call: str
    end: int


def _made(scope: Function | ast.Module) -> Mapping[str, _Object]:
    """Return the objects that the statements of a scope make, each by a call alone."""
    times = Counter(name for statement in scope.body for name in _assigned(statement))
    return {
        statement.targets[0].id: _Object(ast.dump(statement.value.func), span(statement)[1][0])
        for statement in scope.body
        if isinstance(statement, ast.Assign) and isinstance(statement.value, ast.Call)
        if isinstance(statement.targets[0], ast.Name) and times[statement.targets[0].id] == 1
    }


def _assigned(statement: ast.stmt) -> Iterator[str]:
    return (node.id for node in _names_in(statement) if not isinstance(node.ctx, ast.Load))


def _names_in(tree: ast.AST) -> Iterator[ast.Name]:
    return (node for node in ast.walk(tree) if isinstance(node, ast.Name))


def _read(tree: ast.AST) -> Iterator[str]:
    return (node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load))


def _inner(node: ast.AST) -> Iterator[ast.expr]:
    """Yield the expressions in a node, but for docstrings, and for formatted strings, whose places are not known."""
    waiting: list[ast.AST] = [node]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)):
            continue
        if isinstance(node, ast.expr):
            yield node
        waiting += ast.iter_child_nodes(node)


def _messages(node: ast.AST) -> Iterator[ast.expr]:
    """Yield the expressions that say why a test fails."""
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
    """Yield the parts of a test that say what is expected: a side of a comparison that calls nothing, what is
    approximated, the pattern of a message."""
    match node:
        case ast.Compare(left=left, comparators=sides):
            yield from (side for side in (left, *sides) if _is_plain(side))
        case ast.Call(func=ast.Attribute(attr=name) | ast.Name(id=name), args=sides, keywords=keywords):
            yield from (keyword.value for keyword in keywords if keyword.arg == "match")
            if name == "approx" or (name.startswith(("assert", "check", "expect")) and len(sides) > 1):
                yield from (side for side in sides if _is_plain(side))


def _bounds(node: ast.AST) -> Iterator[tuple[ast.expr, Callable[[Any, Any], bool]]]:
    """Yield the numbers that a value must be above or below, and how a number that is harder to meet compares."""
    match node:
        case ast.Compare(left=left, ops=[ast.Gt() | ast.GtE() | ast.Lt() | ast.LtE() as sign], comparators=[right]):
            up = isinstance(sign, ast.Gt | ast.GtE)
            for side, harder in (right, operator.gt if up else operator.lt), (left, operator.lt if up else operator.gt):
                if _is_literal(side):
                    yield side, harder


def _members(node: ast.AST) -> Iterator[ast.expr]:
    """Yield the expressions of a written-out container in which a value is looked for."""
    match node:
        case ast.Compare(ops=[ast.In()], comparators=[ast.List() | ast.Tuple() | ast.Set() | ast.Dict() as container]):
            yield from _inner(container)


def _is_plain(node: ast.expr) -> bool:
    called = [inner for inner in ast.walk(node) if isinstance(inner, ast.Call)]
    return all(isinstance(call.func, ast.Attribute | ast.Name) and "approx" in ast.dump(call.func) for call in called)


def _named(node: ast.AST) -> Iterator[tuple[ast.expr, bool]]:
    """Yield the name of the exception or class that is expected, and whether it is an exception."""
    match node:
        case ast.Call(func=ast.Attribute(attr=name) | ast.Name(id=name), args=[error, *_]) if name in _RAISES:
            yield from ((one, True) for one in _names(error))
        case ast.Call(func=ast.Attribute(attr=name) | ast.Name(id=name), args=[_, kind, *_]) if name in _IS_INSTANCE:
            yield from ((one, False) for one in _names(kind))


def _names(node: ast.expr) -> Iterator[ast.expr]:
    """Yield a class, where there is but one."""
    match node:
        case ast.Name() | ast.Attribute(value=ast.Name()):
            yield node


def _differs(name: str, true: str) -> bool:
    """Say whether a class is no other name, base or subclass of the true one, as far as Python knows both."""
    classes = [getattr(builtins, one, None) for one in (name, true)]
    if not all(isinstance(one, type) for one in classes):
        return name != true
    return not (issubclass(classes[0], classes[1]) or issubclass(classes[1], classes[0]))  # type: ignore[arg-type]


def _is_other(old: str, new: str) -> bool:
    """Say whether the new text is a literal of the same type that is not equal to the old one."""
    try:
        true, made = syntax.literal_eval(old), syntax.literal_eval(new)
    except (SyntaxError, ValueError):
        return False
    return type(true) is type(made) and bool(true != made)


def _rows(decorator: ast.expr) -> Iterator[list[ast.expr]]:
    match decorator:
        case ast.Call(args=[*_, ast.List() | ast.Tuple() as table]):
            yield from _columns(table)


def _columns(table: ast.expr) -> Iterator[list[ast.expr]]:
    """Yield one literal of each row of a table: the first ones of all rows, the second ones, and so on."""
    match table:
        case ast.List(elts=rows) | ast.Tuple(elts=rows):
            columns = [[node for node in _inner(row) if _is_literal(node)] for row in rows]
            yield from (list(cells) for cells in zip(*columns, strict=False))
