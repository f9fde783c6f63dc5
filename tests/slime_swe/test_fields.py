from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slime_swe.errors import UserError
from slime_swe.fields import Argument, Choice, Meta, read, read_arguments


@dataclass(frozen=True)
class Place:
    name: str
    folder: str = "/testbed"

    def faults(self) -> Iterator[str]:
        if not self.folder.startswith("/"):
            yield f"folder must be an absolute path, got {self.folder!r}"


@dataclass(frozen=True)
class Job:
    id: str
    files: Mapping[str, str]
    names: tuple[str, ...]
    seconds: Annotated[float, Meta(gt=0)] = 2
    place: Place | None = None
    runner: Literal["pytest", "lines"] = "lines"
    path: Path = Path("x")


WHOLE = {"id": "a", "files": {"f": "1"}, "names": ["n"], "place": {"name": "p"}, "seconds": 3, "path": "y"}


def test_a_record_becomes_an_object_and_defaults_may_be_left_out():
    assert read(Job, WHOLE, "job") == Job("a", {"f": "1"}, ("n",), 3.0, Place("p"), path=Path("y"))
    assert read(Job, {"id": "a", "files": {}, "names": [], "place": None}, "job") == Job("a", {}, ())


def test_all_faults_are_named_at_once():
    wrong = {"id": 3, "files": {"f": 1}, "names": ["n", 2], "secnds": 1, "place": {"folder": 1}, "runner": "pytst"}
    with pytest.raises(UserError) as error:
        read(Job, wrong, "job 'x'")
    assert str(error.value) == (
        "job 'x': secnds is not a field: did you mean 'seconds'?; id must be str, got 3; "
        "files[...] must be str, got {'f': 1}; names[1] must be str, got ['n', 2]; place.name is missing; "
        "place.folder must be str, got 1; runner: unknown name 'pytst'. Did you mean 'pytest'? Available: lines, pytest"
    )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"seconds": -1}, "seconds must be float above 0.0, got -1"),
        ({"seconds": True}, "seconds must be float, got True"),
        ({"place": 5}, "place must be a JSON object, got 5"),
        ({"place": {"name": "p", "folder": "t"}}, "place.folder must be an absolute path, got 't'"),
        ({"runner": 3}, "runner must be str, got 3"),
        ({"zzz": 3}, r"zzz is not a field \(id, files, names, seconds, place, runner, path\)"),
    ],
)
def test_a_wrong_field_is_named(changes, message):
    with pytest.raises(UserError, match=f"^job: {message}$"):
        read(Job, WHOLE | changes, "job")


@given(st.recursive(st.none() | st.integers() | st.text(), lambda x: st.lists(x) | st.dictionaries(st.text(), x)))
def test_any_other_json_is_refused(record: Any):
    with pytest.raises(UserError):
        read(Job, record, "job")


@dataclass(frozen=True)
class Settings:
    agent: Annotated[str, Argument("swe_agent"), Choice(("native", "aider"), dotted=True)]
    turns: Annotated[int, Argument("swe_turns"), Meta(ge=1)]
    rollout_seed: int = 0


def test_settings_are_read_from_arguments():
    args = Namespace(swe_agent="my.agent", swe_turns=3, rollout_seed=None, other=object())
    assert read_arguments(Settings, args) == Settings("my.agent", 3, 0)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"swe_agent": "aidr"}, "args.swe_agent: unknown name 'aidr'. Did you mean 'aider'? Available: aider, native"),
        ({"swe_turns": 0}, "args.swe_turns must be int of at least 1, got 0"),
        ({"swe_turns": "3"}, "args.swe_turns must be int, got '3'"),
        ({"rollout_seed": True}, "args.rollout_seed must be int, got True"),
        ({"swe_turns": None}, "args.swe_turns is missing: set it in the recipe, or in the file that SLiME's --custom-"),
        ({"swe_agent": "aidr", "swe_turns": 0}, "aider, native; args.swe_turns must be"),
    ],
)
def test_a_wrong_argument_says_where_it_is_set(given, message):
    with pytest.raises(UserError) as error:
        read_arguments(Settings, Namespace(**({"swe_agent": "native", "swe_turns": 3} | given)))
    assert message in str(error.value)
