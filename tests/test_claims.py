"""Each promise of the pages names what fails when it is false, and that is there (`tests/claims.py`)."""

from __future__ import annotations

import pytest

from tests.claims import PAGES, ROOT, exists, misplaced, read, sentences


@pytest.mark.parametrize("page", PAGES)
def test_every_promise_names_what_shows_it(page):
    bare = [f"{page}:{found.line}: {found.text}" for found in read(page) if found.promises and not found.shown]
    assert bare == []


@pytest.mark.parametrize("page", PAGES)
def test_what_a_page_names_is_there(page):
    absent = {f"{page}:{found.line}: {name}" for found in read(page) for name in found.shown if not exists(name)}
    assert sorted(absent) == []
    assert misplaced((ROOT / page).read_text(encoding="utf-8")) == []


TEST = "tests/test_claims.py::test_what_a_page_names_is_there"
EXAMPLE = f"""\
# It never ends

A first sentence. Nothing is lost, at
most delayed. <!-- shown: {TEST} --> No mark is behind this one.

- An item that always holds. `benchmarks/sandbox.py` measures 5 ms.
- It has only words. <!-- no promise: it says what a word means -->

These hold, each by `test_what_a_page_names_is_there`:

- every one

| share | what <!-- shown: benchmarks/sandbox.py --> |
| --- | --- |
| `never` | 12 % |

| way | test |
| --- | --- |
| no lock | `test_what_a_page_names_is_there` |
| no file | the same |
| no socket | |

```bash
never
```

Not covered: a machine that never stops.

## What remains

No clock is checked.
"""


def test_a_mark_covers_what_is_before_it_and_a_table_s_head_its_rows():
    found = [(sentence.text, sentence.shown) for sentence in sentences("page.md", EXAMPLE) if sentence.promises]
    here = ["test_what_a_page_names_is_there"]
    assert found == [
        ("Nothing is lost, at most delayed.", [TEST]),
        ("No mark is behind this one.", []),
        ("- An item that always holds.", []),
        ("`benchmarks/sandbox.py` measures 5 ms.", ["benchmarks/sandbox.py"]),
        ("- every one", here),
        ("| `never` | 12 % |", ["benchmarks/sandbox.py"]),
        ("| no lock | `test_what_a_page_names_is_there` |", here),
        ("| no file | the same |", here),
        ("| no socket | |", []),
    ]


@pytest.mark.parametrize(
    ("name", "is_there"),
    [
        (TEST, True),
        ("test_what_a_page_names_is_there", True),
        ("tests/test_claims.py", True),
        ("benchmarks/sandbox.py", True),
        ("tests/test_claims.py::test_absent", False),
        ("test_that_no_file_has", False),
        ("tests/benchmarks", True),
        ("tests/claims.py", False),  # it has no test
        ("tests/absent", False),
        ("tests/absent.py", False),
        ("benchmarks/absent.py", False),
        ("README.md", False),
    ],
)
def test_a_name_is_that_of_a_test_or_a_benchmark(name, is_there):
    assert exists(name) is is_there


def test_a_test_without_a_file_is_of_the_file_before_and_a_mark_begins_no_line():
    (found,) = sentences("page.md", "Nothing is lost. <!-- shown: tests/a.py::test_b, test_c, benchmarks/d.py -->\n")
    assert found.shown == ["tests/a.py::test_b", "tests/a.py::test_c", "benchmarks/d.py"]
    assert misplaced("Nothing is lost.\n<!-- shown: tests/a.py::test_b -->\n") == [2]
