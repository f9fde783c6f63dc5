"""`slime-swe describe`: tasks with descriptions of a scripted model, over real HTTP."""

from __future__ import annotations

import asyncio
import json

import pytest

pytest.importorskip("coverage")
pytest.importorskip("libcst")

from slime_swe.data_sources.registry import load_tasks
from slime_swe.errors import InfrastructureError
from slime_swe.launch import cli
from slime_swe.launch.commands import describe
from tests.data_sources.specification.shop import sdist
from tests.rollout.endpoint.served import KEY, chat_endpoint


@pytest.fixture
def folder(tmp_path, monkeypatch):
    sdist(tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def asked_for(url, *words):
    spec = "specification:shop-1.0.tar.gz"
    return ["describe", spec, url, "--model", "large", "--out", "made/described.jsonl", "--json", *words]


async def test_a_file_of_tasks_has_a_models_descriptions_and_it_is_asked_once(folder, monkeypatch, capsys):
    monkeypatch.setenv("EXAMPLE_API_KEY", KEY)
    found = []
    async with chat_endpoint(lambda asked: {"role": "assistant", "content": "Seven times x."}, key=KEY) as endpoint:
        for words in ([], [], ["--limit", "1"]):
            options = cli.parse(asked_for(endpoint.url, "--key-variable", "EXAMPLE_API_KEY", *words))
            assert await asyncio.to_thread(describe.run, options) == 0
            found.append(json.loads(capsys.readouterr().out))
            if not words:
                tasks = {task.metadata["names"][0]: task for task in load_tasks("made/described.jsonl")}
        assert len(endpoint.requests) == 1 and "return x * 7" in endpoint.requests[0]["messages"][0]["content"]
    assert "`vague`: Seven times x." in tasks["vague"].statement
    assert "total" in tasks and "Seven times" not in tasks["total"].statement
    assert [(one["tasks"], one["asked"], one["known"]) for one in found] == [(6, 1, 0), (6, 0, 1), (1, 0, 0)]
    assert len(load_tasks("made/described.jsonl")) == 1
    assert KEY not in "".join(path.read_text() for path in (folder / "made").iterdir())


async def test_an_endpoint_that_fails_leaves_no_file(folder, capsys):
    async with chat_endpoint(lambda asked: {"role": "assistant", "content": " "}) as endpoint:
        options = cli.parse(asked_for(endpoint.url))
        with pytest.raises(InfrastructureError, match="by nothing"):
            await asyncio.to_thread(describe.run, options)
    assert not (folder / "made" / "described.jsonl").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["specification:synthetic", "http://h/v1"], "can't be described: give specification:PACKAGE"),
        (["specification:a?limit=1", "http://h/v1"], "without options after a ?"),
        (["synthetic:train", "http://h/v1"], "can't be described"),
        (["specification:a", "localhost:8000"], "localhost:8000 is no address of an endpoint"),
        (["specification:no-such-package", "http://h/v1"], "pip install no-such-package"),
        (["specification:a", "http://h/v1", "--limit", "0"], "--limit must be at least 1, got 0"),
        (["specification:a", "http://h/v1", "--out", "a.json"], "must end with .jsonl"),
    ],
)
def test_what_can_not_be_described_is_said_in_a_paragraph(folder, capsys, words, said):
    assert cli.run(["describe", "--model", "m", "--out", "a.jsonl", *words]) == 2
    assert said in capsys.readouterr().err
