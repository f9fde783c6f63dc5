from __future__ import annotations

import ast
import random
import re
import sys

import pytest

from slime_swe.data_sources.synthetic.bugs import TRAINED_CLASSES, UNSEEN_CLASSES, mutations
from slime_swe.data_sources.synthetic.functions import (
    RunawayError,
    compile_function,
    corrupted,
    run_call,
    scrambled,
    templates,
    watched,
)

SOURCE = '''def FN(XS, K=2):
    """Doc."""
    if not XS:
        return 0
    T = 0
    for X in XS:
        if X > K:
            T += X - K
    return max(T, 100)
'''


def by_class(source: str) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for mutation in mutations(source):
        found.setdefault(mutation.bug_class, []).append(mutation.source)
    return found


@pytest.mark.parametrize(
    ("bug_class", "wrong"),
    [
        ("operator", "if X < K:"),
        ("operator", "T += X + K"),
        ("off_by_one", "if X >= K:"),
        ("wrong_default", "def FN(XS, K=3):"),
        ("wrong_constant", "T = 1"),
        ("wrong_constant", "max(T, 1000)"),
        ("wrong_variable", "return max(X, 100)"),
        ("swapped_arguments", "return max(100, T)"),
        ("swapped_arguments", "T += K - X"),
        ("missing_return", "    max(T, 100)\n"),
        ("wrong_call", "return min(T, 100)"),
        ("negated_condition", "    if XS:\n"),
        ("wrong_update", "T = X - K"),
    ],
)
def test_each_class_makes_its_slip(bug_class: str, wrong: str) -> None:
    assert any(wrong in source for source in by_class(SOURCE)[bug_class])


def test_a_dropped_guard_loses_both_lines() -> None:
    (source,) = by_class(SOURCE)["dropped_guard"]
    assert "not XS" not in source
    assert "return 0" not in source


def test_mutants_are_programs_that_differ_from_the_right_one_and_from_each_other() -> None:
    sources = [mutation.source for mutation in mutations(SOURCE)]
    assert len(set(sources)) == len(sources)
    for source in sources:
        assert source != SOURCE
        ast.parse(source)


def test_the_docstring_which_is_the_specification_is_never_touched() -> None:
    assert all('"""Doc."""' in mutation.source for mutation in mutations(SOURCE))


def test_every_mutant_of_every_template_is_distinguished_by_a_call() -> None:
    classes = set()
    for template in templates():
        assert template.mutants, template.name
        for mutant in template.mutants:
            classes.add(mutant.mutation.bug_class)
            wrong = compile_function(mutant.mutation.source)
            call = template.calls[min(mutant.killed_by)]
            assert run_call(wrong, ast.literal_eval(f"({call.arguments},)")) != call.expected
    assert classes == {*TRAINED_CLASSES, *UNSEEN_CLASSES}


def test_templates_never_raise_on_their_own_calls() -> None:
    for template in templates():
        assert not [call for call in template.calls if call.expected.endswith("Error")], template.name


def test_a_scramble_is_a_wrong_program_of_many_slips_and_no_tasks_bug() -> None:
    rng = random.Random(4)
    sizes = []
    for template in [template for template in templates() if corrupted(template)]:
        scramble = scrambled(rng, template, sites=8)
        ast.parse(scramble.mutation.source)
        assert scramble.killed_by
        assert scramble.mutation.source not in {mutant.mutation.source for mutant in template.mutants}
        words = [re.findall(r"\w+|[^\w\s]+", source) for source in (template.source, scramble.mutation.source)]
        sizes.append(sum(a != b for a, b in zip(*words, strict=False)))
    assert sorted(sizes)[len(sizes) // 2] >= 3


@pytest.mark.parametrize(
    "body",
    [
        "for i in range(x):\n        x += x * x",
        "y = [x]\n    for i in y:\n        y.append(i)",
        "y = 'a'\n    for i in range(x):\n        y += y",
    ],
)
def test_a_call_whose_values_grow_without_end_is_stopped(body: str) -> None:
    function = compile_function(f"def FN(x):\n    {body}\n    return x\n")
    before = sys.gettrace()
    with pytest.raises(RunawayError), watched():
        run_call(function, (250,))
    assert sys.gettrace() is before
