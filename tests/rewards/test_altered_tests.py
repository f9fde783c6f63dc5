"""Altered tests: what is the same in all forms of a test, and how far code gets that reads them and runs nothing."""

from __future__ import annotations

import ast
import builtins
import hashlib
import re
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest

from slime_swe.rewards.altered_tests import FORMS, Altered, alter
from slime_swe.rewards.data_cases import alter_cases
from slime_swe.rewards.negative_control import FURTHER_RUNS

RIGHT = """\
def add(a, b): return a + b
def shout(text): return text.upper() + "!"
def parse(text): return [int(part) for part in text.split(",")]
"""
HEAD = "import unittest\nimport pytest\nfrom calc import add, parse, shout\n\n\n"
# The shapes of tests in which another expected value, an opposite or a raised exception stands out.
SHAPES = {
    "a table in a loop": "for given, want in [('1,2', [1, 2]), ('30', [30])]:\n        assert parse(given) == want",
    "a function that compares": "check(add(17, 26), 43)",
    "a constant": "assert add(17, 26) == SUM",
    "a bound": "assert add(17, 26) > 39",
    "a bound of a length": "assert len(parse('10,20,30')) >= 3",
    "approximately": "assert add(0.25, 1.5) == pytest.approx(1.75)",
    "a function that raises": "fails('12,x')",
    "raises": "with pytest.raises(ValueError):\n        parse('12,x')",
    "raises a message": "with pytest.raises(ValueError, match='invalid literal'):\n        parse('12,x')",
    "a class": "assert isinstance(add(3, 4), int)",
    "raises in an if": "if add(17, 26) != 43:\n        raise AssertionError('17 and 26')",
    "two computed sides": "assert add(17, 26) == add(40, 3)",
    "membership": "assert add(17, 26) in (42, 43)",
    "a member": "assert 'HELLO' in shout('hello')",
    "no member": "assert 4 not in parse('1,2,3')",
    "a truth": "assert shout('hello').startswith('HELLO')",
    "a difference": "assert add(17, 26) != 40",
    "an opposite": "assert not shout('hello').islower()",
}
OTHERS = """

SUM = 43


def check(got, want):
    assert got == want


def fails(text):
    with pytest.raises(ValueError):
        parse(text)


def test_others():
    assert add(12, 30) == 42
    assert shout('it is late') == 'IT IS LATE!'
    assert 4 not in parse('1,2,3')
"""


def file_of(shape: str) -> str:
    return f"{HEAD}def test_a():\n    {SHAPES[shape]}\n{OTHERS}"


@cache
def forms_of(source: str, seed: str = "seed") -> list[str]:
    """The altered files, in order."""
    made = [alter(source.encode(), {"t.py::test_a": number}, seed) for number in range(FORMS)]
    assert all((found.text != source.encode()) == (found.functions == ({"t.py::test_a"},)) for found in made)
    return [found.text.decode() for found in made if found.functions]


def passes(source: str) -> bool:
    names: dict[str, object] = {}
    exec(RIGHT + source.replace("from calc import add, parse, shout", ""), names)
    try:
        names["test_a"]()  # type: ignore[operator]
    except (Exception, pytest.fail.Exception):
        return False
    return True


@cache
def failing(shape: str, seed: str) -> list[str]:
    """The forms that a grading uses."""
    return [form for form in forms_of(file_of(shape), seed) if not passes(form)][: FURTHER_RUNS - 1]


ENOUGH = [shape for shape in SHAPES if shape not in ("a difference", "no member", "an opposite")]


@pytest.mark.parametrize("shape", ENOUGH)
def test_a_test_of_any_shape_has_enough_forms_that_fail(shape):
    assert passes(file_of(shape))
    assert all(len(failing(shape, str(seed))) == FURTHER_RUNS - 1 for seed in range(3))


def skeleton(source: str) -> str:
    """The syntax tree, with the type of each literal alone, and one name for all that Python has built in."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant):
            node.value = type(node.value).__name__
        elif isinstance(node, ast.Name) and hasattr(builtins, node.id):
            node.id = "builtin"
    return ast.dump(tree)


@pytest.mark.parametrize("shape", SHAPES)
def test_a_form_is_written_as_the_test_is_and_no_two_are_the_same(shape):
    source = file_of(shape)
    forms = forms_of(source)
    assert len({source, *forms}) == 1 + len(forms)
    for form in forms:
        changed = [pair for pair in zip(source.split("\n"), form.split("\n"), strict=True) if pair[0] != pair[1]]
        assert len(changed) == 1
        assert len({re.sub(r"\w+", "w", line) for line in changed[0]}) == 1, "spaces, quotes and brackets stay"
        assert skeleton(form) == skeleton(source)


MARKS = re.compile(
    r"exec\(|raise AssertionError\('\d+ != |not in|<|\bnot \(|BufferError|ChildProcessError|FloatingPointError|"
    r"StopAsyncIteration|UnicodeTranslateError"
)


def believed(reader: Callable[[str], bool], shape: str, seed: str) -> bool:
    """Whether it says of the true test that it passes, and of the forms of a grading that they fail."""
    return reader(file_of(shape)) and not any(map(reader, failing(shape, seed)))


@pytest.mark.parametrize("shape", ENOUGH)
def test_code_that_looks_for_marks_of_a_change_is_never_believed(shape):
    def body(source: str) -> str:
        return source.partition("def test_a")[2].partition("\n\n")[0]

    assert not any(believed(lambda source: not MARKS.search(body(source)), shape, str(seed)) for seed in range(3))


@pytest.mark.parametrize("shape", ["a function that compares", "raises", "a bound", "two computed sides"])
def test_code_that_decides_by_what_it_reads_is_believed_as_luck_permits(shape):
    plays = 2000
    forms = [failing(shape, str(seed)) for seed in range(10)]
    true = file_of(shape)

    def reads(salt: int, source: str) -> bool:
        """Whether it says that the test passes: of one text in `FURTHER_RUNS`."""
        return hashlib.sha256(f"{salt} {source}".encode()).digest()[0] % FURTHER_RUNS == 0

    earned = sum(
        reads(play, true) and not any(reads(play, form) for form in forms[play % len(forms)]) for play in range(plays)
    )
    luck = (1 - 1 / FURTHER_RUNS) ** (FURTHER_RUNS - 1) / FURTHER_RUNS
    assert earned - plays * luck < 6 * (plays * luck * (1 - luck)) ** 0.5, "p < 1e-9"


def test_forms_are_those_of_a_seed():
    source = file_of("a function that compares")
    assert forms_of(source, "a") == forms_of(source, "a") != forms_of(source, "b")
    assert len({tuple(forms_of(source, str(seed))) for seed in range(20)}) == 20


def one(body: str, number: int = 0, before: str = "", shown: bytes = b"") -> Altered:
    return alter(f"{before}def test_a(x=None):\n    {body}\n".encode(), {"t.py::test_a": number}, "seed", shown)


@pytest.mark.parametrize(
    ("body", "reads"),
    [
        ("assert f(1) == 700", r"f\(\d\) == [1-9]00"),
        ("assert f(x) == -1.50", r"f\(x\) == -\d\.\d0"),
        ("assert f(x) == 0x1F", r"f\(x\) == 0x\d[A-Z]"),
        ("assert f(x) == b'ab'", r"f\(x\) == b'[a-z]{2}'"),
        ("assert f(x) == r'\\n1'", r"f\(x\) == r'\\n\d'"),
        ('assert f(x) == "a" "b"', r'f\(x\) == "\w" "\w"'),
        ("assert f(x) == '[!]'", r"f\(x\) == '\[[^!\w\s]\]'"),
        ("assert f(x) == 'é1'", r"f\(x\) == 'é\d'"),
        ("assert f(x) == '\\n\\t7'", r"f\(x\) == '\\n\\t\d'"),
        ("assert f(x) == 1, 'one of 7'", r"f\(x\) == \d, 'one of 7'"),
        ("self.assertEqual(f(x), 'Title')", r"self.assertEqual\(f\(x\), '[A-Z][a-z]{4}'\)"),
    ],
)
def test_how_a_literal_is_altered(body, reads):
    found = {one(body, number).text.decode().partition("\n")[2].strip() for number in range(FORMS)} - {body}
    assert found
    assert all(re.search(reads, text) for text in found), found


@pytest.mark.parametrize(
    "body",
    [
        "assert f(x)",
        "assert not f(x)",
        "assert x in f(x)",
        "assert f(x) == '[]'",
        "assert f'{x} 1' == x",
        '"""1."""\n    f(x)',
    ],
)
def test_what_has_no_form(body):
    found = one(body, 3)
    assert found == Altered(found.text, beyond={frozenset({"t.py::test_a"}): 3})


NAMES = [("kept", "b"), ("a", "a"), ("a", "kept")]
NODES = "kept = Node()\n\n"


@pytest.mark.parametrize(
    ("body", "forms"),
    [
        ("assert f(x) is True", ["assert f(x) is False"]),
        ("assert f(x) is not None", ["assert f(x) is None"]),
        ("self.assertFalse(f(x))", ["self.assertTrue(f(x))"]),
        ("self.assertIsNone(f(x))", ["self.assertIsNotNone(f(x))"]),
        (
            "assert f(x) is None\n    assert g(x) == True",
            [
                "assert f(x) is None\n    assert g(x) == False",
                "assert f(x) is not None\n    assert g(x) == False",
                "assert f(x) is not None\n    assert g(x) == True",
            ],
        ),
        ("x.pop()\n    assert f(x)", ["assert f(x)"]),
        ("x.y = z\n    assert f(x)", ["assert f(x)"]),
        ("a = Node(x)\n    assert f(a)", ["a = Node(x)\n    assert f(kept)"]),
        (
            "a = Node(x)\n    b = Node(a)\n    assert f(b)",
            [f"a = Node(x)\n    b = Node({first})\n    assert f({second})" for first, second in NAMES],
        ),
        ("a = Edge(x)\n    assert f(a)", []),
        ("if x:\n        a = Node(x)\n    assert f(kept)", []),
    ],
)
def test_every_form(body, forms):
    found = [one(body, number, NODES) for number in range(FORMS)]
    texts = {form.text.decode().partition("\n    ")[2].strip() for form in found if form.functions}
    assert texts == set(forms)


def test_a_constant_is_altered_if_no_other_deciding_test_reads_it():
    assert one("assert f(x) == SUM", before="SUM = 43\n\n").functions
    source = b"SUM = 43\n\n\ndef test_a():\n    assert f() == SUM\n\n\ndef test_b():\n    assert g() == SUM\n"
    assert alter(source, {"t.py::test_a": 0}, "seed").functions
    assert not alter(source, {"t.py::test_a": 0}, "seed", deciding=["t.py::test_b"]).functions
    assert not alter(source, {"t.py::test_a": 0, "t.py::test_b": 0}, "seed").functions
    assert not alter(source + b"helper = [SUM]\n", {"t.py::test_a": 0}, "seed").functions


def test_every_row_of_a_table_is_altered():
    text = one("assert f(x)", before="@pytest.mark.parametrize('x', [11, 22, 33])\n").text.decode()
    assert all(old != new for old, new in zip(["11", "22", "33"], re.findall(r"\d\d", text), strict=True))


def test_what_agents_have_seen_stays():
    shown = b"def test_a(x=None):\n    assert f(1) == 10\n"
    for number in range(FORMS):
        text = one("assert f(1) == 10\n    assert f(2) == 20", number, shown=shown).text
        assert b"f(1) == 10\n" in text


def test_line_ends_and_tests_that_are_not_found_stay():
    source = b"def test_a():\r\n    assert f() == 12\r\n"
    assert re.fullmatch(
        rb"def test_a\(\):\r\n    assert f\(\) == \d\d\r\n", alter(source, {"t.py::test_a": 0}, "s").text
    )
    assert alter(source, {"t.py::test_b": 0}, "s") == Altered(source)
    assert alter(source, {"t.py::test_a": 99}, "s").text == source


def real_files() -> Iterator[Path]:
    yield from sorted(Path(__file__).parent.glob("test_*.py"))[:12]


def test_real_files_stay_python():
    for path in real_files():
        source = path.read_bytes()
        functions = [node.name for node in ast.parse(source).body if isinstance(node, ast.FunctionDef)]
        names = [f"t.py::{name}" for name in functions if name.startswith("test")]
        for number in (0, 5, FORMS - 1):
            altered = alter(source, dict.fromkeys(names, number), "seed")
            ast.parse(altered.text)


CASES = "[case testA]\nx = 'one' # E: Name \"one\" is 12 of two\n\n[case testB]\nx = 1\n"


def test_a_case_is_altered_in_what_it_expects_or_else_in_its_program():
    for test, stays in ("testA", "[case testA]\nx = 'one' # E: "), ("testB", CASES[: CASES.index("x = 1")]):
        found = [alter_cases("x.test", CASES.encode(), {f"run.py::x.test::{test}": n}, "s") for n in range(FORMS)]
        texts = {case.text.decode() for case in found if case.functions}
        assert texts and CASES not in texts
        assert all(text.startswith(stays) and len(text.splitlines()) == len(CASES.splitlines()) for text in texts)
