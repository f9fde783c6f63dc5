"""Every corpus's loader, run on a small copy of the corpus's layout; and what is stated of the corpora."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
import tarfile
from dataclasses import replace
from pathlib import Path

import orjson
import pytest

from slime_swe.data_sources.corpora import CORPORA
from slime_swe.data_sources.registry import SOURCES, load_tasks
from slime_swe.data_sources.repositories import fetch
from slime_swe.data_sources.task import HarnessOracle, Task, TestsOracle, Workspace
from slime_swe.errors import UserError
from slime_swe.rewards.grade import grade
from slime_swe.sandbox.bubblewrap import environment
from slime_swe.sandbox.pool import SandboxPool
from tests.rewards import image_backend

FIXTURES = Path(__file__).parent / "fixtures"
DOCUMENT = Path(__file__).parents[2] / "docs" / "corpora.md"
SETS = ["swebench:verified", "swegym:train", "swesmith:train", "quixbugs:python", "quixbugs:java", "bugsinpy:all"]
SETS += ["defects4j:all", "gitbug_java:all", "r2egym:subset", "swerebench:filtered", "swerebench:v2"]
SETS += ["primevul:test", "debian_cve:all", "bandit:all", "polyglot:python"]


def load(name: str) -> list[Task]:
    return load_tasks(f"{name}?folder={FIXTURES / name.partition(':')[0]}")


def copy(corpus: str, folder: Path) -> Path:
    return Path(shutil.copytree(FIXTURES / corpus, folder / corpus))


@pytest.mark.parametrize("name", SETS)
def test_tasks_survive_a_file(name):
    tasks = load(name)
    assert tasks
    for task in tasks:
        assert Task.from_dict(orjson.loads(orjson.dumps(task.to_dict()))) == task
        assert task.statement.strip() and task.source == name.partition(":")[0] and task.oracle.gold_patch
        assert task.workspace.files or task.workspace.image
        assert task.metadata["repo"]


@pytest.mark.parametrize("name", SETS)
def test_the_statement_does_not_tell_the_fix(name):
    for task in load(name):
        added = [line[1:].strip() for line in task.oracle.gold_patch.splitlines() if line.startswith("+")]
        assert not any(line and line in task.statement for line in added)


def test_every_corpus_has_a_fixture_and_a_source():
    assert {name.partition(":")[0] for name in SETS} == set(CORPORA) < set(SOURCES)


def test_the_published_counts():
    """Each with where it is published in `Corpus.counted`; the fixtures can't show them."""
    counts = {f"{c.name}:{name}": split.count for c in CORPORA.values() for name, split in c.splits.items()}
    assert counts == {
        "swebench:verified": 500,
        "swebench:lite": 300,
        "swebench:multilingual": 300,
        "swebench:full": 2294,
        "swegym:train": 2438,
        "swesmith:train": None,
        "r2egym:subset": 4578,
        "r2egym:lite": None,
        "r2egym:v1": None,
        "swerebench:filtered": 6542,
        "swerebench:test": 21336,
        "swerebench:v2": None,
        "quixbugs:python": 40,
        "quixbugs:java": 40,
        "bugsinpy:all": 501,
        "defects4j:all": 835,
        "gitbug_java:all": 199,
        "polyglot:all": 225,
        "polyglot:cpp": 26,
        "polyglot:go": 39,
        "polyglot:java": 47,
        "polyglot:javascript": 49,
        "polyglot:python": 34,
        "polyglot:rust": 30,
        "primevul:train": None,
        "primevul:valid": None,
        "primevul:test": None,
        "debian_cve:one": None,
        "debian_cve:all": None,
        "bandit:all": None,
    }
    assert all(corpus.counted and corpus.licence and corpus.needs for corpus in CORPORA.values())
    sized = {name for name, corpus in CORPORA.items() if any(split.images_gib for split in corpus.splits.values())}
    assert sized == {name for name, corpus in CORPORA.items() if corpus.sized}


def test_the_document_has_every_corpus():
    rows = [line for line in DOCUMENT.read_text(encoding="utf-8").splitlines() if line.startswith("| `")]
    cells = {row.split("`")[1]: row for row in rows}
    for corpus in CORPORA.values():
        for name, split in corpus.splits.items():
            row = cells[f"{corpus.name}:{name}"]
            count = "| about " if split.count is None else f"| {split.count:,} |"
            assert count in row and split.languages in row and corpus.licence in row


@pytest.mark.parametrize("name", SETS)
def test_an_unknown_split_says_which_there_are(name):
    corpus = name.partition(":")[0]
    with pytest.raises(UserError, match=f"split of {corpus}: unknown name 'dev'. .*Available"):
        load(f"{corpus}:dev")


@pytest.mark.parametrize("name", [name for name in SETS if CORPORA[name.partition(":")[0]].commit])
def test_a_missing_clone_says_how_to_make_it(name, tmp_path):
    corpus = CORPORA[name.partition(":")[0]]
    with pytest.raises(UserError) as caught:
        load_tasks(f"{name}?folder={tmp_path}/none")
    said = str(caught.value)
    assert f"`slime-swe tasks fetch '{name}?folder={tmp_path}/none'` brings it (git clone {corpus.home})" in said
    assert f"{name}?folder=DIR" in said


@pytest.mark.parametrize("name", [name for name in SETS if CORPORA[name.partition(":")[0]].brought_by])
def test_what_a_person_has_to_bring_is_said_with_its_command(name, tmp_path):
    corpus = CORPORA[name.partition(":")[0]]
    with pytest.raises(UserError) as caught:
        load_tasks(f"{name}?folder={tmp_path}/none")
    assert f"`{corpus.brought_by}` in that folder brings it. A folder elsewhere" in str(caught.value)
    with pytest.raises(UserError, match=f"is fetched by `{corpus.brought_by}`, in the folder {tmp_path}"):
        fetch(corpus, name.partition(":")[2], tmp_path)


def test_a_missing_data_set_says_the_one_command_that_brings_it(tmp_path, monkeypatch):
    """No task set is downloaded because it is read: a job of many processes would, each for itself."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError) as caught:
        load_tasks("swebench:verified")
    said = str(caught.value)
    assert f"SWE-bench is not in {tmp_path}/corpora/swebench (it holds no verified.jsonl)" in said
    assert "`slime-swe tasks fetch swebench:verified` brings it (data set SWE-bench/SWE-bench_Verified)" in said
    assert "swebench:verified?folder=DIR" in said


def test_the_default_folder_is_beside_the_working_directory(tmp_path, monkeypatch):
    copy("swebench", tmp_path / "corpora")
    monkeypatch.chdir(tmp_path)
    assert load_tasks("swebench:verified") == load("swebench:verified")


@pytest.mark.skipif(importlib.util.find_spec("pyarrow") is None, reason="pyarrow is not installed")
def test_parquet_is_read_as_json_lines_are(tmp_path):
    import pyarrow
    import pyarrow.parquet

    lines = (FIXTURES / "swebench" / "verified.jsonl").read_bytes().splitlines()
    rows = [
        orjson.loads(line) | {"FAIL_TO_PASS": ["tests/test_text.py::test_shout"], "PASS_TO_PASS": []} for line in lines
    ]
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "verified.parquet")
    tasks = load_tasks(f"swebench:verified?folder={tmp_path}")
    assert [task.id for task in tasks] == [task.id for task in load("swebench:verified")]
    assert load_tasks(str(tmp_path / "verified.parquet"))[0].oracle == tasks[0].oracle
    (tmp_path / "verified.parquet").write_bytes(b"PAR")
    with pytest.raises(UserError, match="is not a Parquet file"):
        load_tasks(f"swebench:verified?folder={tmp_path}")


def test_tasks_of_one_s_own_may_be_in_parquet_whatever_files_each_has(tmp_path):
    """A column of structs has each row's keys in all rows."""
    import pyarrow
    import pyarrow.parquet

    tasks = load("polyglot:python") + load("swegym:train")
    tasks += [replace(tasks[0], id="other", workspace=Workspace({"other.py": "x = 1\n"}))]
    rows = [task.to_dict() for task in tasks]
    (tmp_path / "mine.jsonl").write_bytes(b"\n".join(map(orjson.dumps, rows)))
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "mine.parquet")
    assert load_tasks(str(tmp_path / "mine.parquet")) == load_tasks(str(tmp_path / "mine.jsonl")) == tasks
    files = pyarrow.array(
        [list(row["workspace"]["files"].items()) for row in rows[-1:]], pyarrow.map_("string", "string")
    )
    mapped = pyarrow.StructArray.from_arrays([files], ["files"])
    table = pyarrow.Table.from_pylist([{**rows[-1], "workspace": None}]).drop_columns("workspace")
    pyarrow.parquet.write_table(table.append_column("workspace", mapped), tmp_path / "mapped.parquet")
    assert load_tasks(str(tmp_path / "mapped.parquet")) == tasks[-1:]


def test_nothing_heavy_is_imported_before_it_is_needed():
    heavy = {"bandit", "datasets", "pyarrow", "swebench", "tree_sitter"}
    code = f"import sys, slime_swe.data_sources.registry; print(sorted({heavy} & sys.modules.keys()))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_primevul_s_own_files_are_read_and_records_without_a_partner_refused(tmp_path):
    rows = (FIXTURES / "primevul" / "test.jsonl").read_bytes().splitlines()
    (tmp_path / "primevul_valid_paired.jsonl").write_bytes(b"\n".join(rows))
    first, second, third, fourth = load_tasks(f"primevul:valid?folder={tmp_path}")
    assert [task.oracle.vulnerable for task in (first, second, third, fourth)] == [True, False, True, False]
    assert third.oracle.cwes == ("CWE-476",), "and not the word beside it"
    assert first.metadata["cves"] == ["CVE-2024-0001"] and first.oracle.lines == (3,)
    for wrong, said in (
        (rows[:3], "has 3 records, and pairs are two each"),
        (rows[:1] * 2, "records 1 and 2 are no pair"),
    ):
        (tmp_path / "train.jsonl").write_bytes(b"\n".join(wrong))
        with pytest.raises(UserError, match=said):
            load_tasks(f"primevul:train?folder={tmp_path}")


def test_bandit_s_examples_have_one_finding_before_and_none_after(tmp_path):
    before, after, *_ = tasks = load("bandit:all")
    assert [task.metadata["test"] for task in tasks] == ["B506", "B506", "B102", "B102"]
    assert before.oracle.cwes == ("CWE-20",) and before.oracle.lines == (7,)
    assert "yaml.load(text)" in before.workspace.files["example.py"]
    assert not any("exec" in task.workspace.files["example.py"] for task in (before, after))
    assert "insecure" not in before.workspace.files["example.py"], "no comment says it"
    with tarfile.open(tmp_path / "bandit-1.0.tar.gz", "w:gz") as tar:
        tar.add(FIXTURES / "bandit" / "examples", "bandit-1.0/examples")
    assert load_tasks(f"bandit:all?folder={tmp_path}") == tasks


def test_swegym_gets_the_image_and_the_script_that_its_harness_would_make():
    pandas, mypy = load("swegym:train")
    assert isinstance(pandas.oracle, HarnessOracle) and isinstance(mypy.oracle, HarnessOracle)
    assert pandas.workspace.image is not None
    assert pandas.workspace.image.name == "xingyaoww/sweb.eval.x86_64.pandas-dev_s_pandas-7"
    script = pandas.oracle.eval_script
    reset = f"git checkout {'1' * 40} -- tests/test_text.py\nrm -rf -- tests/test_new.py\n"
    assert script.count(reset) == 2, "before the tests, and after"
    assert "\npytest -rA --tb=long tests/test_new.py tests/test_text.py\n" in script
    assert "\npytest -n0 -rA -k 'testOne or testTwo'\n" in mypy.oracle.eval_script
    assert pandas.oracle.protected == ("tests/test_new.py", "tests/test_text.py")


def test_swegym_refuses_a_repository_whose_tests_it_can_not_run(tmp_path):
    record = orjson.loads((FIXTURES / "swegym" / "train.jsonl").read_bytes().splitlines()[0])
    (tmp_path / "train.jsonl").write_bytes(orjson.dumps(record | {"repo": "someone/else"}))
    with pytest.raises(UserError, match="how the tests of someone/else run is not known; known are bokeh/bokeh"):
        load_tasks(f"swegym:train?folder={tmp_path}")


@pytest.mark.parametrize("bad", [{"problem_statement": None}, {"problem_statement": "  \n"}, {"patch": 7}])
@pytest.mark.parametrize("name", ["swebench:verified", "swesmith:train", "swegym:train"])
def test_a_record_that_can_not_be_used_takes_no_other_with_it(name, bad, tmp_path, caplog):
    corpus, _, split = name.partition(":")
    first, *others = (FIXTURES / corpus / f"{split}.jsonl").read_bytes().splitlines()
    spoilt = [orjson.dumps(orjson.loads(first) | bad | {"instance_id": f"a__b-{number}"}) for number in range(12)]
    (tmp_path / f"{split}.jsonl").write_bytes(b"\n".join([spoilt[0], first, *others, *spoilt[1:]]))
    spec = f"{name}?folder={tmp_path}"
    assert load_tasks(spec) == load(name)
    load_tasks(f"{spec}&limit=1")
    (warning,) = [record.message for record in caplog.records]
    assert "12 of " in warning and all(f"a__b-{number}'" in warning for number in range(12))
    with pytest.raises(UserError, match="1 of 1 ids are not in it: a__b-3"):
        load_tasks(f"{spec}&id=a__b-3")
    (tmp_path / f"{split}.jsonl").write_bytes(b"\n".join(spoilt))
    with pytest.raises(UserError, match=r"(?s)a__b-0.*\nand 2 records more"):
        load_tasks(spec)


def test_a_task_of_one_s_own_asks_the_agent_something(tmp_path):
    task = load("swegym:train")[0].to_dict() | {"statement": " \n"}
    (tmp_path / "mine.jsonl").write_bytes(orjson.dumps(task))
    with pytest.raises(UserError, match=r"statement must say what the agent is asked, got ' \\n'"):
        load_tasks(str(tmp_path / "mine.jsonl"))


def test_swerebench_is_read_in_both_versions():
    """What has no test that must come to pass, or another language's log, is left out."""
    first, second = load("swerebench:filtered")
    assert first.workspace.image is not None and second.workspace.image is not None
    assert first.workspace.image.name == "swerebench/sweb.eval.x86_64.example_1776_toy-tools-7", "as it is published"
    assert second.workspace.image.name == "swerebench/sweb.eval.x86_64.example_1776_toy-tools-8"
    assert isinstance(first.oracle, HarnessOracle)
    assert "\npytest --no-header -rA --tb=line" in first.oracle.eval_script
    assert "-W ignore::DeprecationWarning tests/test_new.py tests/test_text.py\n" in first.oracle.eval_script
    assert "pip install" not in first.oracle.eval_script, "there is no network"
    assert "source /opt/miniconda3/bin/activate\nconda activate testbed\n" in first.workspace.image.setup
    assert first.metadata["difficulty"] == "1" and first.metadata["created_at"] == "2023-03-01 12:00:00"
    (python,) = load("swerebench:v2")
    assert isinstance(python.oracle, HarnessOracle) and python.workspace.image is not None
    assert python.workspace.image.name == "docker.io/swerebenchv2/example-toy:7-1111111"
    assert (python.workspace.image.folder, python.workspace.image.setup) == ("/toy", "")
    assert "\nexport TZ=UTC\npytest -rA --no-header tests\n" in python.oracle.eval_script
    assert python.metadata["difficulty"] == "medium"
    assert python.metadata["created_at"] == "2020-12-30T03:14:33+00:00"


def test_swesmith_runs_the_files_of_the_failing_tests():
    one, two = load("swesmith:train")
    assert isinstance(one.oracle, TestsOracle) and one.workspace.image is not None
    assert one.metadata == {"repo": "example/toy_tools", "base_commit": "0a1b2c3d"}
    assert one.workspace.image.name == "example/swesmith.x86_64.example_1776_toy_tools.0a1b2c3d"
    assert one.oracle.pass_to_pass == ("tests/test_sums.py::test_none",), "those of other files are not run"
    assert one.oracle.command == "pytest -rA --disable-warnings --color=no --tb=no tests/test_sums.py"
    assert "+    return first + second" in one.oracle.gold_patch
    assert one.oracle.missing == "as_gold"
    assert two.oracle.command.endswith("-c /dev/null --rootdir . tests/test_sums.py")
    assert two.oracle.fail_to_pass == ("tests/test_sums.py::test_add",), "the record has ../dev/tests/test_sums.py"


def test_every_malformed_record_of_a_corpus_is_named(tmp_path):
    record = orjson.loads((FIXTURES / "swesmith" / "train.jsonl").read_bytes().splitlines()[0])
    lines = [orjson.dumps(one) for one in (record | {"repo": "a"}, record, record | {"FAIL_TO_PASS": []})]
    (tmp_path / "train.jsonl").write_bytes(b"\n".join([*lines, b"{"]))
    with pytest.raises(
        UserError, match=r"line 1: .*got 'a'\n.*, line 3: .*at least one test.*\n.*, line 4: not a JSON"
    ):
        load_tasks(f"swesmith:train?folder={tmp_path}")


def test_swesmith_leaves_out_what_it_can_not_grade_and_says_what_it_can_not_read(tmp_path):
    record = orjson.loads((FIXTURES / "swesmith" / "train.jsonl").read_bytes().splitlines()[0])
    copied = "diff --git a/a.py b/b.py\ncopy from a.py\ncopy to b.py\n"
    for change in ({"repo": "swesmith/python__mypy.0a1b2c3d"}, {"patch": copied}):
        (tmp_path / "train.jsonl").write_bytes(orjson.dumps(record | change))
        with pytest.raises(UserError, match="is empty"):
            load_tasks(f"swesmith:train?folder={tmp_path}")
    (tmp_path / "train.jsonl").write_bytes(orjson.dumps(record | {"repo": "example/toy"}))
    with pytest.raises(UserError, match=r"repo must be ACCOUNT/OWNER__NAME\.COMMIT, got 'example/toy'"):
        load_tasks(f"swesmith:train?folder={tmp_path}")


def test_bugsinpy():
    first, second = load("bugsinpy:all")
    assert first.id == "bugsinpy-shapes-1" and first.metadata["repo"] == "example/shapes"
    assert first.oracle.fail_to_pass == ("tests/test_area.py::test_square", "tests/test_area.py::TestArea::test_circle")
    assert second.oracle.fail_to_pass == ("tests.test_area.Corners::test_none",)
    assert second.oracle.protected == ("tests/test_area.py", "tests/data.py")
    assert first.workspace.image is not None
    assert first.workspace.image.setup == "export PYTHONPATH=/testbed/build/lib:/testbed/extra"
    assert "at 1111111111111111111111111111111111111111 in /testbed" in first.metadata["image"]


@pytest.mark.skipif(
    shutil.which("python", path=environment()["PATH"]) is None,
    reason="sandboxes have no program named python here: apt-get install python-is-python3",
)
async def test_a_bug_of_bugsinpy_is_graded_where_there_is_an_image():
    """The sandboxes hold what the image would: the faulty project with the fixed project's tests."""
    task = load("bugsinpy:all")[1]
    assert task.workspace.image is not None
    test = "from unittest import TestCase\nfrom shapes.area import square\n\n\nclass Corners(TestCase):\n"
    image_backend.IMAGES[task.workspace.image.name] = {
        "shapes/__init__.py": b"",
        "shapes/area.py": b"def square(side):\n    return side * 2\n",
        "tests/__init__.py": b"",
        "tests/test_area.py": f"{test}    def test_none(self):\n        self.assertEqual(square(3), 9)\n".encode(),
        "tests/data.py": b"",
    }
    cheat = task.oracle.gold_patch.replace("side * side", "side * 3").replace("shapes/area.py", "tests/test_area.py")
    async with SandboxPool("tests.rewards.image_backend.backend") as sandboxes:
        assert (await grade(task, task.oracle.gold_patch, sandboxes)).solved
        wrong = await grade(task, task.oracle.gold_patch.replace("side * side", "side ** 3"), sandboxes)
        assert not wrong.solved and wrong.evidence["outcome"] == "failed"
        assert not (await grade(task, cheat, sandboxes)).solved


@pytest.mark.parametrize(
    ("file", "text", "message"),
    [
        ("bug.info", 'python_version="3"', "does not set buggy_commit_id, fixed_commit_id, test_file"),
        ("run_test.sh", "make check", "runs no test that is known here: make check"),
        ("run_test.sh", "\n", "runs no test that is known here: it is empty"),
    ],
)
def test_a_bug_of_bugsinpy_that_can_not_be_read(tmp_path, file, text, message):
    (copy("bugsinpy", tmp_path) / "projects" / "shapes" / "bugs" / "2" / file).write_text(text)
    with pytest.raises(UserError, match=f"'bugsinpy-shapes-2': .*{message}"):
        load_tasks(f"bugsinpy:all?folder={tmp_path}/bugsinpy")


def test_defects4j():
    (task,) = load("defects4j:all")
    assert isinstance(task.oracle, TestsOracle)
    assert task.oracle.fail_to_pass == ("org.toy.SumTest::testTwo", "org.toy.SumTest::testThree")
    assert task.oracle.pass_to_pass == ("org.toy.NoneTest::*", "org.toy.Sum$Inner_Test::*")
    assert task.oracle.protected == ("src/test/org/toy/SumTest.java",)
    assert "+    int of(int a, int b) { return a + b; }" in task.oracle.gold_patch, "its patches lead to the fault"
    assert "expected:<3> but was:<-1>" in task.statement and "SumTest.java:9" not in task.statement
    assert "defects4j checkout -p Toy -v 3b" in task.metadata["image"]


def test_gitbug_java():
    maven, gradle = load("gitbug_java:all")
    assert maven.oracle.fail_to_pass == ("org.toy.WordsTest::[1]_two_words",)
    assert maven.oracle.pass_to_pass == ("org.toy.WordsTest::none",)
    assert maven.statement == "Words are miscounted\n\nTwo words count as one.", "no comments, no pull requests"
    assert gradle.statement.endswith("org.toy.WordsTest::two")
    assert maven.oracle.protected == gradle.oracle.protected == ("src/test/java/org/toy/WordsTest.java",)
    assert "mvn " in maven.oracle.command and "gradle " in gradle.oracle.command
    assert maven.metadata["base_commit"] == "d" * 40, "the commit before the fix"


def test_a_bug_of_gitbug_java_that_can_not_be_read(tmp_path):
    path = copy("gitbug_java", tmp_path) / "data" / "bugs" / "example-words.json"
    record = orjson.loads(path.read_bytes().splitlines()[0])
    for change, message in [
        ({"actions_runs": []}, "line 1: list index out of range"),
        ({"strategy": 3}, "strategy must be str, got 3"),
        ({"actions_runs": [record["actions_runs"][2]] * 3}, "in actions_runs no test fails before the fix and passes"),
    ]:
        path.write_bytes(orjson.dumps(record | change))
        with pytest.raises(UserError, match=message):
            load_tasks(f"gitbug_java:all?folder={tmp_path}/gitbug_java")
