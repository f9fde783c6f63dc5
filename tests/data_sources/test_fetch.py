"""Fetching a corpus: `datasets` reads a real Parquet copy of a data set, of the corpus's own fields."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import orjson
import pytest

from slime_swe.data_sources.corpora import CORPORA
from slime_swe.data_sources.registry import load_tasks
from slime_swe.launch.cli import run
from tests.data_sources.test_corpora import FIXTURES

datasets = pytest.importorskip("datasets")
huggingface_hub = pytest.importorskip("huggingface_hub")

LISTS = ("FAIL_TO_PASS", "PASS_TO_PASS")
HUB = [("swegym", "train", "train"), ("swebench", "verified", "test"), ("swesmith", "train", "train")]
HUB += [("r2egym", "subset", "train"), ("swerebench", "filtered", "filtered"), ("swerebench", "v2", "train")]


def copy_of_the_hub(corpus: str, split: str, hub_split: str, folder: Path) -> Path:
    """A data set as `hf download` leaves it: data/SPLIT-00000-of-00001.parquet."""
    import pyarrow
    import pyarrow.parquet

    rows = [orjson.loads(line) for line in (FIXTURES / corpus / f"{split}.jsonl").read_bytes().splitlines()]
    for row in rows if corpus == "swebench" else []:  # the Hub has one type for a column: there, JSON
        row |= {name: row[name] if isinstance(row[name], str) else json.dumps(row[name]) for name in LISTS}
    (folder / "data").mkdir(parents=True)
    table = pyarrow.Table.from_pylist(rows)
    pyarrow.parquet.write_table(table, folder / "data" / f"{hub_split}-00000-of-00001.parquet")
    return folder


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))


@pytest.mark.parametrize(("corpus", "split", "hub_split"), HUB)
def test_what_is_fetched_is_read_without_a_network(corpus, split, hub_split, tmp_path, capsys):
    copy = copy_of_the_hub(corpus, split, hub_split, tmp_path / "copy")
    name = f"{corpus}:{split}"
    assert CORPORA[corpus].splits[split].dataset_split == hub_split
    assert run(["tasks", "fetch", name, "--from", str(copy)]) == 0
    tasks = load_tasks(name)
    said = capsys.readouterr().out
    images = len({task.workspace.image.name for task in tasks})
    assert said == f"{name}  {len(tasks)} tasks in {images} images  corpora/{corpus}/{split}.jsonl\n"
    expected = load_tasks(f"{name}?folder={FIXTURES / corpus}")
    assert [(task.id, task.oracle, task.workspace) for task in tasks] == [
        (task.id, task.oracle, task.workspace) for task in expected
    ]


def test_a_data_set_of_several_configurations_is_fetched_by_the_one_that_is_meant(tmp_path):
    copy = tmp_path / "copy"
    copy.mkdir()
    content = (FIXTURES / "primevul" / "test.jsonl").read_bytes()
    (copy / "primevul_test_paired.jsonl").write_bytes(content)
    (copy / "primevul_test.jsonl").write_bytes(content.splitlines(keepends=True)[0])
    configurations = [("default", "primevul_test.jsonl"), ("paired", "primevul_test_paired.jsonl")]
    listed = "".join(
        f"- config_name: {name}\n  data_files:\n  - split: test\n    path: {path}\n" for name, path in configurations
    )
    (copy / "README.md").write_text(f"---\nlicense: mit\nconfigs:\n{listed}---\n")
    assert run(["tasks", "fetch", "primevul:test", "--from", str(copy)]) == 0
    assert load_tasks("primevul:test") == load_tasks(f"primevul:test?folder={FIXTURES / 'primevul'}")


def test_a_set_that_is_there_is_not_fetched_again(tmp_path, capsys):
    copy = copy_of_the_hub("swegym", "train", "train", tmp_path / "copy")
    assert run(["tasks", "fetch", "swegym:train", "--from", str(copy)]) == 0
    path = Path("corpora/swegym/train.jsonl")
    before = path.stat().st_mtime_ns
    assert run(["tasks", "fetch", "swegym:train?limit=1", "--json"]) == 0  # offline: nothing else could be had
    (brought,) = json.loads(capsys.readouterr().out.partition("\n")[2])["fetched"]
    assert brought == {"set": "swegym:train?limit=1", "path": str(path), "tasks": 1, "images": 1}
    assert path.stat().st_mtime_ns == before


def test_one_that_is_interrupted_leaves_no_half_of_a_file(tmp_path, monkeypatch):
    copy = copy_of_the_hub("swegym", "train", "train", tmp_path / "copy")

    def interrupted(records, total):
        yield next(iter(records))
        raise KeyboardInterrupt

    monkeypatch.setattr("slime_swe.launch.commands.tasks._with_progress", interrupted)
    assert run(["tasks", "fetch", "swegym:train", "--from", str(copy)]) == 130
    assert [*Path("corpora/swegym").iterdir()] == []
    monkeypatch.undo()
    monkeypatch.chdir(tmp_path)
    assert run(["tasks", "fetch", "swegym:train", "--from", str(copy)]) == 0
    assert len(load_tasks("swegym:train")) == 2


def test_without_a_network_a_sentence_says_what_to_do(monkeypatch, capsys):
    for constants in (huggingface_hub.constants, datasets.config):  # of HF_HUB_OFFLINE, which is read at import
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert run(["tasks", "fetch", "swerebench:filtered"]) == 2
    said = capsys.readouterr().err
    assert "slime-swe: swerebench:filtered could not be had from nebius/SWE-rebench: Couldn't reach" in said
    assert "hf download --repo-type dataset nebius/SWE-rebench --local-dir DIR" in said
    assert "slime-swe tasks fetch swerebench:filtered --from DIR" in said
    assert not Path("corpora").exists()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["synthetic:train"], "is of no corpus, and needs no fetching; swebench, swegym"),
        (["swegym:dev"], "split of swegym: unknown name 'dev'"),
        (["swegym:train", "--from", "nowhere"], "swegym:train could not be had from nowhere"),
        (["swegym:train", "swebench:verified", "--from", "x"], "--from is a copy of one data set"),
        ([], "`tasks fetch` needs a task set, e.g. swegym:train"),
    ],
)
def test_what_can_not_be_fetched_is_said(arguments, said, capsys):
    assert run(["tasks", "fetch", *arguments]) == 2
    assert said in capsys.readouterr().err


def test_a_split_that_the_copy_lacks_is_said(tmp_path, capsys):
    copy = copy_of_the_hub("swerebench", "filtered", "test", tmp_path / "copy")
    assert run(["tasks", "fetch", "swerebench:filtered", "--from", str(copy)]) == 2
    assert "swerebench:filtered could not be had" in capsys.readouterr().err


def test_a_corpus_of_git_is_cloned_at_its_commit(tmp_path, monkeypatch, capsys):
    def git(*arguments: str) -> str:
        command = ["git", "-c", "user.name=x", "-c", "user.email=x@x", "-C", str(upstream), *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    upstream = tmp_path / "upstream"
    upstream.mkdir()
    git("init", "-q")
    (upstream / "framework").mkdir()
    subprocess.run(["cp", "-r", f"{FIXTURES}/defects4j/framework/projects", str(upstream / "framework")], check=True)
    git("add", "-A")
    git("commit", "-qm", "x")
    commit = git("rev-parse", "HEAD")
    git("rm", "-rq", "framework")
    git("commit", "-qm", "later")
    corpus = CORPORA["defects4j"]
    monkeypatch.setattr(corpus.__class__, "__setattr__", object.__setattr__)
    monkeypatch.setattr(corpus, "home", str(upstream))
    monkeypatch.setattr(corpus, "commit", commit)
    assert run(["tasks", "fetch", "defects4j:all"]) == 0
    assert capsys.readouterr().out == "defects4j:all  1 tasks in 1 images  corpora/defects4j\n"
    assert [task.id for task in load_tasks("defects4j:all")]
    monkeypatch.setattr(corpus, "home", str(tmp_path / "gone"))
    assert run(["tasks", "fetch", "defects4j:all"]) == 0, "it is there"
    assert run(["tasks", "fetch", f"defects4j:all?folder={tmp_path}/other"]) == 1
    assert "git clone" in capsys.readouterr().err and not (tmp_path / "other").exists()
