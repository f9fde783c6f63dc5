"""Data files that tests read, in altered forms."""

from __future__ import annotations

import json
import re

import pytest

from slime_swe.rewards.altered_tests import FORMS
from slime_swe.rewards.data_cases import alter_data, is_read_by
from slime_swe.rewards.mutated_files import MutatedFiles, alter_files

LINES = '[["a", 12], 30]\n[["b", 41], 25]\n\n[["c", 0.5], 18]\n'
CASES = json.dumps([{"given": "no", "expected": "one"}, {"given": "go", "expected": "two"}], indent=2)


def forms_of(source: str, seed: str = "seed") -> list[str]:
    made = [alter_data(source.encode(), number, seed) for number in range(FORMS)]
    return [form.decode() for form in made if form is not None]


def documents(source: str) -> list[object]:
    try:
        return [json.loads(source)]
    except ValueError:
        return [json.loads(line) for line in source.splitlines() if line]


def types_of(value: object) -> object:
    if isinstance(value, dict):
        return {key: types_of(inner) for key, inner in value.items()}
    return [types_of(inner) for inner in value] if isinstance(value, list) else type(value)


@pytest.mark.parametrize("source", [LINES, CASES, '{"a": [1, 22], "b": [3]}', "[true, false, true]"])
def test_forms_are_written_as_the_file_is_and_no_two_are_the_same(source):
    forms = forms_of(source)
    assert len({source, *forms}) == 1 + len(forms)
    for form in forms:
        assert re.sub(r"\w+", "w", form) == re.sub(r"\w+", "w", source)
        assert types_of(documents(form)) == types_of(documents(source))
    assert forms_of(source) == forms
    if source != "[true, false, true]":
        assert len(forms) == FORMS and forms_of(source, "other") != forms
    else:
        assert len(forms) == 2**3 - 1


def test_first_the_last_literal_of_every_record_is_another():
    for form in forms_of(LINES)[: FORMS // 3]:
        for old, new in zip(documents(LINES), documents(form), strict=True):
            assert new[0] == old[0] and new[1] != old[1]
    for form in forms_of(CASES)[: FORMS // 3]:
        for old, new in zip(json.loads(CASES), json.loads(form), strict=True):
            assert new["given"] == old["given"] and new["expected"] != old["expected"]


@pytest.mark.parametrize(
    "source", [b"", b"null", b"[]", b"{}", b'[null, "", {"key": []}]', b"[1, 2", b"no: json 1", b"\xff"]
)
def test_what_has_no_form(source):
    assert alter_data(source, 0, "seed") is None


@pytest.mark.parametrize(
    ("source", "read"),
    [
        (b'load("data/gcd.json")', True), (b'load("gcd")', True), (b"load(gcd.__name__)", True),
        (b"gcds = 1", False), (b"lcm = 2", False),
    ],
)  # fmt: skip
def test_what_reads_a_file(source, read):
    assert is_read_by("tests/data/gcd.json", source) is read


READER = b"def test_a(given, want):\n    assert gcd(*given) == want\n"
FILES = {"t.py": READER, "d/gcd.json": LINES.encode(), "d/lcm.json": LINES.encode()}


def altered(files: dict[str, bytes], number: int, *tests: str, deciding: tuple[str, ...] = ()) -> MutatedFiles:
    return alter_files(files, {test: test for test in (*tests, *deciding)}, dict.fromkeys(tests, number))


def test_of_a_test_without_a_form_the_file_that_it_reads_has_some():
    found = altered(FILES, 0, "t.py::test_a[0]", "t.py::test_a[1]")
    assert found.files.keys() == {"d/gcd.json"}
    assert found.functions == ({"t.py::test_a[0]", "t.py::test_a[1]"},)


def test_a_file_that_several_tests_read_stays_as_it_is():
    files = {**FILES, "u.py": READER}
    assert altered(files, 0, "t.py::test_a", "u.py::test_a") == MutatedFiles()
    assert altered(files, 0, "t.py::test_a", deciding=("u.py::test_a",)) == MutatedFiles(), "it may be as it is"
    assert altered(files, 0, "t.py::test_a").files.keys() == {"d/gcd.json"}, "the others decide nothing"


def test_forms_of_the_file_come_after_those_of_the_test():
    files = {**FILES, "t.py": READER.replace(b"*given", b"*given, 12345")}
    changed = [altered(files, number, "t.py::test_a").files.keys() for number in range(2 * FORMS)]
    assert changed == [{"t.py"}] * (FORMS // 3) + [{"d/gcd.json"}] * FORMS + [set()] * (2 * FORMS - FORMS - FORMS // 3)
