"""Specification tasks of a small project, made by real runs of its tests, and of the generated repositories."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("coverage")
pytest.importorskip("libcst")

from slime_swe.data_sources.registry import load_tasks
from slime_swe.data_sources.specification import removals, tasks
from slime_swe.data_sources.specification.tasks import make_tasks
from slime_swe.data_sources.task import Task
from slime_swe.errors import UserError
from slime_swe.patches import apply_patch, make_patch
from slime_swe.rewards.grade import GradingSettings, grade
from slime_swe.rewards.validation import Status, validate
from slime_swe.sandbox.pool import SandboxPool
from tests.data_sources.specification.shop import CODE, SHOP, sdist

STUB = "raise NotImplementedError"


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="module")
def functions():
    return {task.metadata["names"][0]: task for task in make_tasks(SHOP)}


def test_each_function_that_says_what_it_does_is_a_task_with_the_tests_that_run_it(functions):
    tests = {name: task.oracle.fail_to_pass for name, task in functions.items()}
    added = ("tests/test_till.py::test_added[prices0-7]", "tests/test_till.py::test_added[prices1-0]")
    pay, start = "tests/test_till.py::TestTill::test_pay", "tests/test_till.py::TestTill::test_start"
    assert tests == {
        "total": ("tests/test_till.py::test_total",),
        "added": (*added, "tests/test_till.py::test_total"),
        "halves": ("test_halves_as_documented.py::test_halves_as_documented",),
        "Till.__init__": (pay, start),
        "Till.pay": (pay,),
    }
    for name, task in functions.items():
        path = task.metadata["path"]
        assert task.workspace.files[path].count(STUB) == 1
        assert apply_patch(task.workspace.files, task.oracle.gold_patch)[path].decode() == CODE
        assert f"`{name}`" in task.statement and task.oracle.command in task.statement
        assert Task.from_dict(json.loads(json.dumps(task.to_dict()))) == task


def test_the_statement_has_the_signature_and_the_docstring_and_nothing_of_the_body(functions):
    assert 'def total(prices, discount=0):\n    """The sum of the prices, less' in functions["total"].statement
    assert "max(0" not in functions["total"].statement


async def test_gold_solves_and_nothing_does_not_over_three_runs(functions):
    async with SandboxPool("local") as sandboxes:
        for name, runs in (("total", 3), ("halves", 1)):  # by tests of the project, and by a doctest
            finding = await validate(functions[name], sandboxes, runs)
            assert finding.status is Status.SOUND, finding


def written(task, body):
    """The patch of an agent that writes this body."""
    path = task.metadata["path"]
    files = task.workspace.files
    return make_patch({path: files[path]}, {path: files[path].replace(STUB, body)})


CHEATS = pytest.mark.parametrize(
    "cheat",
    [
        pytest.param(lambda task: written(task, "return 51"), id="constant"),
        pytest.param(lambda task: "", id="empty"),
        pytest.param(lambda task: written(task, "return prices"), id="copied input"),
        pytest.param(lambda task: written(task, "return " + "(0) + " * 90_000 + "0"), id="overlong"),
        pytest.param(
            lambda task: written(task, "'''" + task.oracle.gold_patch.replace("\n", "\n    ") + "'''"),
            id="quoted oracle",
        ),
    ],
)


@CHEATS
async def test_an_answer_that_is_none_raises_no_reward(functions, cheat):
    task = functions["added"]  # its tests show several values: a constant is right on one of them at most
    async with SandboxPool("local") as sandboxes:
        score = await grade(task, cheat(task), sandboxes)
    assert (score.solved, score.value) == (False, -1.0)


@pytest.fixture(scope="module")
def untested():
    """Of the project without its tests."""
    code = {path: text for path, text in SHOP.files.items() if not path.startswith("tests/")}
    bare = tasks.project("bare", "1.0", code)
    return {task.metadata["names"][0]: task for task in make_tasks(bare, "untested")}


def test_what_neither_tests_nor_doctests_run_is_a_task_of_its_own_size(untested):
    assert make_tasks(SHOP, "untested") == []
    assert {"total", "added", "Till.pay"} <= untested.keys() and untested.keys().isdisjoint(
        ["halves", "shown", "vague"]
    )
    task = untested["added"]
    assert (task.oracle.kind, task.metadata["tests"], task.metadata["size"]) == ("diff", "none", "untested")
    assert task.statement.endswith(
        "No test runs it: what you write is compared with what was there. Change nothing else.\n"
    )


@CHEATS
async def test_likeness_pays_no_answer_that_is_none(untested, cheat):
    pytest.importorskip("cydifflib")
    for mode, least in (("fraction", 0.0), ("plus_minus", -1.0)):
        score = await grade(untested["added"], cheat(untested["added"]), None, GradingSettings(mode))
        assert (score.solved, score.value) == (False, least)


async def test_an_untested_body_is_worth_the_more_the_more_it_is_like_the_one_that_was_there(untested):
    pytest.importorskip("cydifflib")
    task, loop = untested["added"], "result = 0\n    for price in prices:\n        result += price\n    return result"
    bodies = ["return sum(prices)", loop.replace("for price in", "for each in"), loop.replace("= 0", "= 1"), loop]
    values = [(await grade(task, written(task, body), None, GradingSettings("fraction"))).value for body in bodies]
    assert values == sorted({*values}) and (values[0], values[-1]) == (0.0, 1.0)
    assert (await validate(task, None)).status is Status.SOUND  # type: ignore[arg-type]


async def test_where_there_are_tests_likeness_orders_answers_that_fail(functions):
    pytest.importorskip("cydifflib")
    from slime_swe.rewards.diff import likeness

    task = functions["total"]
    near, far = (likeness(task, written(task, body)) for body in ("return max(1, added(prices) - discount)", "pass"))
    assert 0 < far < near < 1


def test_a_class_and_a_module_are_removed_at_once():
    (till,) = make_tasks(SHOP, "classes")
    assert till.id == "shop-1.0-class-shop.till-Till"
    assert (till.metadata["names"], till.workspace.files["shop/till.py"].count(STUB)) == (["Till"], 2)
    assert len(till.oracle.fail_to_pass) == 2
    (module,) = make_tasks(SHOP, "modules")
    assert module.workspace.files["shop/till.py"].count(STUB) == 7
    assert len(module.oracle.fail_to_pass) == 6
    assert "return {" in module.workspace.files["shop/till.py"]  # what runs at import stays


def test_steps_come_one_after_the_other():
    steps = {task.metadata["names"][0]: task for task in make_tasks(SHOP, "steps")}
    added, total = (steps[name].workspace.files["shop/till.py"] for name in ("added", "total"))
    assert list(steps).index("added") < list(steps).index("total")
    assert "return max(0" not in added and "result += price" not in added
    assert "result += price" in total and "return max(0" not in total
    assert (
        "result += price"
        in apply_patch(steps["added"].workspace.files, steps["added"].oracle.gold_patch)["shop/till.py"].decode()
    )
    assert all("test_total" not in test for test in steps["added"].oracle.fail_to_pass)


def test_what_says_too_little_is_described_by_a_model_where_one_is_asked():
    asked = []

    def describe(source):
        asked.append(source)
        return "Seven times x."

    found = {task.metadata["names"][0]: task for task in make_tasks(SHOP, describe=describe)}
    assert "`vague`: Seven times x." in found["vague"].statement
    assert "def vague(x):" in asked[0] and "return x * 7" in asked[0]
    assert "Seven times x." not in found["total"].statement


def test_the_same_project_gives_the_same_tasks_and_its_tests_run_once(functions, monkeypatch):
    monkeypatch.setattr(tasks, "proved", None)
    assert {task.metadata["names"][0]: task for task in make_tasks(SHOP)} == functions


def test_a_project_without_tests_has_its_doctests_alone():
    bare = tasks.project("bare", "1.0", {"shop/__init__.py": "", "shop/till.py": CODE})
    assert [task.metadata["names"] for task in make_tasks(bare)] == [["halves"]]


@pytest.mark.parametrize(
    "examples",
    [
        ">>> f(1)\n1.0...\n",
        ">>> print(f(1))\n1\n",
        ">>> f(1)\nTraceback (most recent call last):\nE: x\n",
        ">>> f(1)\n",
        "none",
        ">>> f(1)  # doctest: +SKIP\n1\n",
        ">>> f(\n1\n",
        "  >>> f(1)\n 1\n",
    ],
)
def test_examples_that_can_t_be_compared_make_no_test(examples):
    assert removals.test_file("shop", "f", examples) is None


def test_an_installed_package_is_read_and_another_is_refused():
    found = tasks.installed("iniconfig")
    assert "iniconfig/__init__.py" in found.code and "iniconfig/py.typed" in found.files
    assert not any(".dist-info" in path for path in found.files)
    for name, said in (
        ("no-such-package", "pip install no-such-package"),
        ("iniconfig/pages", "Did you mean|There are|size"),
    ):
        with pytest.raises(UserError, match=said):
            load_tasks(f"specification:{name}")


def test_a_source_distribution_is_taken_by_its_path_also_where_its_code_is_below_src(tmp_path):
    (till,) = load_tasks(f"specification:{sdist(tmp_path)}/classes")
    assert till.metadata["path"] == "src/shop/till.py" and "-o pythonpath=src" in till.oracle.command
    assert len(till.oracle.fail_to_pass) == 2


def test_a_project_without_code_is_refused():
    with pytest.raises(UserError, match="no Python code"):
        tasks.project("a", "1", {"test_a.py": "", "a.txt": ""})


@pytest.fixture(scope="module")
def generated():
    return load_tasks("specification:synthetic?limit=12")


async def test_generated_tasks_are_graded_by_values_and_prove_themselves(generated):
    async with SandboxPool("local") as sandboxes:
        for task in generated[:2]:
            assert (await validate(task, sandboxes, runs=1)).status is Status.SOUND
            score = await grade(task, written(task, "return 1"), sandboxes)
            assert not score.solved


def test_generated_tasks_hold_one_function_without_a_body(generated):
    for task in generated:
        (name,) = task.metadata["names"]
        assert name in task.statement and task.workspace.files[task.metadata["path"]].count(STUB) == 1
