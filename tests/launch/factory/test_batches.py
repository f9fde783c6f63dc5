"""Many runs of a project's tests in one sandbox: each is of its own state, and leaves nothing behind."""

from __future__ import annotations

import pytest

from slime_swe.data_sources.factory.runs import Job, as_map, measure, tracing
from slime_swe.launch.factory.proof import LIMITS, Batches
from slime_swe.sandbox import SandboxPool
from tests.data_sources.factory import shop

TESTS = ["tests/test_core.py"]
RIGHT = Job({}, TESTS)


def changed(old: str, new: str, **fields) -> Job:
    assert old in shop.CODE
    return Job({"shop/core.py": shop.CODE.replace(old, new)}, TESTS, **fields)


@pytest.fixture
async def batches():
    async with SandboxPool("local", concurrency=1) as pool, pool.open(shop.files(), LIMITS) as sandbox:
        yield Batches(sandbox, [])


async def test_each_state_is_run_from_the_project_as_it_is(batches):
    jobs = [Job({}, TESTS, compile=True), RIGHT, changed("result + price", "result - price", texts=True), RIGHT]
    first, second, broken, last = await batches.run(jobs)
    assert first.passed == second.passed == last.passed and all(first.passed.values()) and len(first.passed) == 8
    assert "tests/test_core.py::test_never" not in first.tests, "skipped"
    failed = [name for name, passed in broken.passed.items() if not passed]
    assert "tests/test_core.py::test_total" in failed and "tests/test_core.py::test_basket" not in failed
    assert "assert 0 == 30" in broken.tests["tests/test_core.py::test_total"].text


async def test_what_tests_leave_behind_is_gone(batches):
    writing = 'import os\n\n\ndef test():\n    assert not os.path.exists("left")\n    open("left", "w").close()\n'
    writing += '    open("shop/core.py", "w").close()\n'
    job = Job({"tests/test_more.py": writing}, ["tests/test_more.py"])
    runs = await batches.run([job, job, RIGHT])
    assert [all(run.passed.values()) and not run.timed_out for run in runs] == [True] * 3
    assert "tests/test_more.py::test" not in runs[2].tests


async def test_a_state_that_hangs_dies_or_can_not_be_imported_is_said(batches):
    loop = changed("    result = 0\n", "    result = 0\n    while True:\n        pass\n", seconds=1)
    end = changed("    result = 0\n", "    import os\n\n    os._exit(0)\n")
    hangs, dies, broken, right = await batches.run([loop, end, changed("class Basket:", "class Other:"), RIGHT])
    assert hangs.timed_out and dies.timed_out
    assert broken.errors == ["tests/test_core.py"] and not broken.tests
    assert all(right.passed.values()) and not right.timed_out


async def test_a_state_that_waits_for_ever_is_soon_ended(batches):
    """Long before its time of the clock is over. One that computes goes on, whatever it prints."""
    event = "    result = 0\n    import threading\n    threading.Event().wait()\n"
    waits = changed("    result = 0\n", event, waiting=1)
    slow = "import time\nend = time.process_time() + 2\nwhile time.process_time() < end:\n    pass\n\n\nclass Basket:"
    hangs, right = await batches.run([waits, changed("class Basket:", slow, waiting=1)])
    assert hangs.timed_out and not right.timed_out and all(right.passed.values())


async def test_a_file_that_a_state_lacks_is_back_afterwards(batches):
    lacking, right = await batches.run([Job({"shop/core.py": None}, TESTS), RIGHT])
    assert lacking.errors and all(right.passed.values())


async def test_coverage_in_a_sandbox_is_that_of_this_machine(batches):
    pytest.importorskip("coverage")
    (run,) = await batches.run([tracing(shop.files(), TESTS, 20, 300)])
    inside, outside = as_map(run), measure(shop.files(), TESTS)
    for known in ("tests", "lines", "at_import"):
        assert getattr(inside, known) == getattr(outside, known)
    assert inside.tests_of("shop/core.py", [shop.CODE.splitlines().index('            raise ValueError("full")') + 1])


async def test_an_interpreter_that_coverage_was_not_built_for_measures_too(batches):
    pytest.importorskip("coverage")
    job = tracing(shop.files(), TESTS, 20, 300)
    (first,) = await batches.run([job])
    await batches._sandbox.exec("rm /tmp/slime-swe-tests/coverage/tracer.*")
    (again,) = await batches.run([job])
    assert again.lines == first.lines
