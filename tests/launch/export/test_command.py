"""`slime-swe export`: what it is asked for wrongly is said, and nothing half written is left."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest

from slime_swe.launch.cli import run
from slime_swe.launch.episodes import RecordedEpisode
from slime_swe.launch.export import EXPORTERS, Exporter, exporter_class
from slime_swe.rollout.records import EPISODES
from tests.launch.export.recorded import check_no_secret
from tests.planted import ENVIRONMENT


@pytest.mark.parametrize("to", EXPORTERS)
def test_every_format_is_written_without_a_secret_and_says_how_it_is_opened(to, export, recorded, capsys):
    assert ENVIRONMENT["OPENAI_API_KEY"] in (recorded / EPISODES).read_text(), "or the test shows nothing"
    path = export(to)
    check_no_secret(path)
    assert path.is_dir() == exporter_class(to).is_folder
    said = capsys.readouterr().out.splitlines()
    assert said[-1] == exporter_class(to).opened.format(path=path)
    assert (
        said[0]
        == {
            "inspect": "5 episodes written",
            "atif": "4 episodes written, and 1 left out that infrastructure broke or that say nothing",
            "predictions": "4 episodes written, and 1 left out that infrastructure broke or that say nothing",
            "messages": "4 episodes written, and 1 left out that infrastructure broke or that say nothing",
            "mini": "4 episodes written, and 1 left out that infrastructure broke or that say nothing",
            "hf": "4 episodes written, and 1 left out that infrastructure broke or that say nothing",
        }[to]
    )
    assert [one for one in path.parent.iterdir() if one != path] == []


def test_episodes_are_selected_as_in_the_list_of_them(export, capsys):
    export("messages", "--solved", "--rollout", "4", "--json")
    assert json.loads(capsys.readouterr().out)["episodes"] == 1
    path = export("messages", "--evaluation", "heldout", "--json")
    assert json.loads(capsys.readouterr().out) == {"path": str(path), "episodes": 4, "left_out": 0}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--to", "atiff"], "--to: unknown name 'atiff'. Did you mean 'atif'?"),
        (["--to", "messages", "--rollout", "77"], "no episode in"),
        (["--to", "messages", "--evaluation", "heldou"], "Did you mean 'heldout'"),
        (
            ["--to", "messages", "--task", "calc-1", "--rollout", "4", "--no-solved", "--evaluation", "x"],
            "unknown name",
        ),
    ],
)
def test_what_is_asked_for_wrongly(words, said, recorded, tmp_path, capsys):
    out = tmp_path / "out"
    assert run(["export", str(recorded), "--out", str(out), *words]) == 2
    assert said in capsys.readouterr().err
    assert [*tmp_path.iterdir()] == []


def test_a_path_that_is_there_is_left_alone(recorded, tmp_path, capsys):
    out = tmp_path / "out"
    out.write_text("mine")
    assert run(["export", str(recorded), "--to", "messages", "--out", str(out)]) == 2
    assert "is there already: give a new path, or remove it" in capsys.readouterr().err
    assert out.read_text() == "mine"


def test_a_missing_extra_is_named(recorded, tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "inspect_ai", None)
    monkeypatch.setattr("slime_swe.launch.extras.find_spec", lambda name: None)
    assert run(["export", str(recorded), "--to", "inspect", "--out", str(tmp_path / "out")]) == 2
    assert "inspect_ai is not installed: pip install 'slime-swe[inspect]'" in capsys.readouterr().err


@pytest.mark.parametrize("to", ["atif", "inspect"])
def test_a_time_that_is_none_is_said(to, recorded, tmp_path, capsys):
    line, *_ = (recorded / EPISODES).read_bytes().splitlines()
    damaged = json.loads(line)
    damaged["episode"]["timings"]["started"] = 1e20
    folder = tmp_path / "damaged"
    folder.mkdir()
    (folder / "recipe.yaml").write_bytes((recorded / "recipe.yaml").read_bytes())
    (folder / "tools").symlink_to(recorded / "tools")
    (folder / EPISODES).write_text(json.dumps(damaged) + "\n")
    assert run(["export", str(folder), "--to", to, "--out", str(tmp_path / "out")]) == 2
    assert "1e+20 seconds since 1970 is no time" in capsys.readouterr().err


def test_records_without_turns_say_so(recorded, tmp_path, capsys):
    line, *_ = (recorded / EPISODES).read_bytes().splitlines()
    old = json.loads(line) | {"turns": None}
    folder = tmp_path / "old"
    folder.mkdir()
    (folder / "recipe.yaml").write_bytes((recorded / "recipe.yaml").read_bytes())
    (folder / "tools").symlink_to(recorded / "tools")
    (folder / EPISODES).write_text(json.dumps(old) + "\n")
    assert run(["export", str(folder), "--to", "atif", "--out", str(tmp_path / "out")]) == 2
    assert "only --to predictions can be written of it" in capsys.readouterr().err
    assert run(["export", str(folder), "--to", "predictions", "--out", str(tmp_path / "out")]) == 0
    assert run(["export", str(folder), "--to", "inspect", "--out", str(tmp_path / "logs")]) == 2, "without messages"


class Tasks(Exporter):
    """A format of a user's own."""

    what, opened = "the tasks' names", "cat {path}"
    is_folder = False

    def add(self, episode: RecordedEpisode) -> None:
        with self.path.open("a") as file:
            file.write(f"{episode.task} {episode.moment}\n")


def test_a_format_of_one_s_own(recorded, tmp_path):
    out = tmp_path / "out"
    assert run(["export", str(recorded), "--to", f"{__name__}.Tasks", "--rollout", "5", "--out", str(out)]) == 0
    assert out.read_text() == "calc-1 train-rollout5\n"


def test_the_page_has_every_format_and_its_command():
    page = (Path(__file__).parents[3] / "docs" / "export.md").read_text()
    rows = re.findall(r"^\| `(\w+)` \| .*? \| `(.*?)` \|", page, re.MULTILINE)
    commands = {name: exporter_class(name).opened.format(path="PATH") for name in EXPORTERS}
    assert dict(rows) == commands
