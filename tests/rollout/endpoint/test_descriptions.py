"""Descriptions of functions by a model behind an endpoint, over real HTTP, up to the task that has one."""

from __future__ import annotations

import asyncio

import pytest

from slime_swe.errors import UserError
from slime_swe.rollout.endpoint.descriptions import MOST_CHARACTERS, KeptDescriptions, describer
from slime_swe.rollout.replies import EngineError
from tests.rollout.endpoint.served import KEY, chat_endpoint

SOURCE = "def vague(x):\n    return x * 7\n"


def says(text):
    return lambda asked: {"role": "assistant", "content": text}


async def test_a_source_is_described_and_its_cost_counted(tmp_path):
    async with chat_endpoint(says(" Seven times x. \n"), key=KEY) as endpoint:
        describe = describer(endpoint.url, "large", tmp_path / "spending.jsonl", KEY)
        assert await asyncio.to_thread(describe, SOURCE) == "Seven times x."
        assert SOURCE in endpoint.requests[0]["messages"][0]["content"]
        assert endpoint.requests[0]["temperature"] == 0.0
    assert (tmp_path / "spending.jsonl").read_text().count("\n") == 1


async def test_a_long_description_is_cut_and_an_empty_one_is_none(tmp_path):
    async with chat_endpoint(says("x" * 9999)) as endpoint:
        describe = describer(endpoint.url, "large", tmp_path / "spending.jsonl")
        assert len(await asyncio.to_thread(describe, SOURCE)) == MOST_CHARACTERS
        endpoint.say = says(" ")
        with pytest.raises(EngineError, match="by nothing"):
            await asyncio.to_thread(describe, SOURCE)


def test_an_address_that_is_none_is_refused(tmp_path):
    with pytest.raises(UserError, match="no address"):
        describer("localhost:8000", "large", tmp_path)


async def test_a_task_of_what_its_docstring_leaves_open_has_the_models_words(tmp_path, monkeypatch):
    pytest.importorskip("coverage")
    pytest.importorskip("libcst")
    from slime_swe.data_sources.specification.tasks import make_tasks
    from tests.data_sources.specification.shop import SHOP

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    async with chat_endpoint(says("Seven times x.")) as endpoint:
        describe = describer(endpoint.url, "large", tmp_path / "spending.jsonl")
        tasks = await asyncio.to_thread(make_tasks, SHOP, describe=describe)
    (vague,) = (task for task in tasks if task.metadata["names"] == ["vague"])
    assert "`vague`: Seven times x." in vague.statement


def test_what_a_model_said_is_kept_and_it_is_asked_once(tmp_path):
    asked = []

    def describe(source):
        asked.append(source)
        return f"It is {source}."

    path = tmp_path / "said"
    first = KeptDescriptions(path, "large", describe)
    assert [first.describe("a"), first.describe("a"), first.describe("b")] == ["It is a.", "It is a.", "It is b."]
    assert (first.asked, first.known, asked) == (2, 1, ["a", "b"])
    path.write_bytes(path.read_bytes()[:-9])  # a kill
    again = KeptDescriptions(path, "large", describe)
    assert (again.describe("a"), again.describe("b")) == ("It is a.", "It is b.")
    assert (again.asked, again.known) == (1, 1)
    assert KeptDescriptions(path, "small", lambda source: "other").describe("a") == "other"


def test_a_file_of_something_else_is_no_place_for_descriptions(tmp_path):
    path = tmp_path / "said"
    path.write_text("hello\n")
    with pytest.raises(UserError, match="holds no descriptions"):
        KeptDescriptions(path, "large", str)
