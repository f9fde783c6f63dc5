"""Faults by SWE-smith's modifiers, combinations of them, and the code of one release under the tests of the next."""

from __future__ import annotations

import ast
from itertools import islice

import pytest

from slime_swe.data_sources.factory.faults import Place, combined, faults, places
from slime_swe.data_sources.factory.packages import Candidate, Span, between
from slime_swe.patches import apply_patch
from tests.data_sources.factory import shop

pytest.importorskip("swesmith", reason="the extra factory")
pytest.importorskip("tree_sitter_rust", reason="the extra factory")


@pytest.fixture(scope="module")
def package(tmp_path_factory):
    return shop.package(tmp_path_factory.mktemp("shop"))


@pytest.fixture(scope="module")
def found(package):
    return [*faults(package)]


def test_each_fault_compiles_differs_and_has_a_fix(package, found):
    assert len(found) > 20
    assert len({tuple(one.changes.values()) for one in found}) == len(found)
    for one in found:
        (path,) = one.changes
        ast.parse(one.changes[path])
        assert apply_patch(one.broken_files(), one.gold_patch())[path].decode() == package.files[path]


def test_the_same_package_gives_the_same_faults(package, found):
    assert [one.digest for one in faults(package)] == [one.digest for one in found]


def test_faults_are_made_as_they_are_asked_for(package, found, monkeypatch):
    changed, asked = Place.changed, []
    monkeypatch.setattr(Place, "changed", lambda place, source: asked.append(place) or changed(place, source))
    first, second = islice(faults(package), 2)
    assert [first.digest, second.digest] == [one.digest for one in found[:2]]
    assert 2 <= len(asked) < len(found) / 2


def test_modifiers_take_turns(found):
    kinds = {one.kind for one in found}
    assert len(kinds) > 5
    assert {one.kind for one in islice(found, len(kinds))} == kinds


def test_a_fault_changes_lines_of_its_span_alone(package, found):
    for one in found:
        (span,) = one.spans
        before, after = package.files[span.path].splitlines(), str(one.changes[span.path]).splitlines()
        assert after[: span.first - 1] == before[: span.first - 1]
        rest = len(before) - span.last
        assert not rest or after[-rest:] == before[-rest:]


def test_two_faults_of_a_file_are_both_in_a_combination(package):
    def changed(old, new, span):
        return Candidate(package, "faults", old, {span.path: shop.CODE.replace(old, new)}, (span,))

    one = changed("result + price", "result - price", Span("shop/core.py", 4, 11))
    other = changed("price < prices", "price > prices", Span("shop/core.py", 14, 21))
    overlapping = changed("found = name\n", "found = None\n", Span("shop/core.py", 14, 21))
    (both,) = combined([one, other, overlapping])[:1]
    text = shop.CODE.replace("result + price", "result - price").replace("price < prices", "price > prices")
    assert (both.kind, both.changes) == ("combine_file", {"shop/core.py": text})
    assert both.about == {"kinds": "result + price, price < prices"}
    assert combined([other, overlapping]) == []


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("a.go", "func f(a, b int) int {\n\tif a > b && a > 1 {\n\t\treturn a + b\n\t}\n\treturn a - b\n}\n"),
        ("a.rs", "fn f(a: i32, b: i32) -> i32 {\n    if a > b && a > 1 {\n        return a + b;\n    }\n    a\n}\n"),
        ("a.js", "function f(a, b) {\n  if (a > b && a > 1) {\n    return a + b;\n  }\n  return a - b;\n}\n"),
        ("a.java", "class A {\n  int f(int a, int b) {\n    if (a > b && a > 1) {\n      return a + b;\n    }\n"
                   "    return a - b;\n  }\n}\n"),
        ("a.cpp", "int f(int a, int b) {\n  for (int i = 0; i < a; i++) {\n    if (a > b && a > 1) {\n"
                  "      b = b + i * 2;\n    } else {\n      b = b - 1;\n    }\n  }\n  return b + 10;\n}\n"),
    ],
    ids=lambda value: value if value.startswith("a.") else "",
)  # fmt: skip
def test_other_languages_have_faults_too(path, source):
    made = {place.changed(source) for place in places(path, source)} - {None}
    assert made and made != {source}


def test_what_can_not_be_parsed_has_no_faults():
    assert [*places("a.py", "def f(:\n")] == [] == [*places("a.txt", "text")]


def test_an_older_release_s_code_under_the_newer_s_tests(tmp_path):
    newer, older = (shop.read_package(path) for path in shop.releases(tmp_path))
    candidate = between(older, newer)
    assert candidate.changes == {"shop/core.py": shop.OLD_CODE}
    assert candidate.about == {"before": "1.0"}
    assert any(span.meets(Span("shop/core.py", 9, 10)) for span in candidate.spans)
    assert between(newer, newer) is None
