"""`slime-swe evaluate URL`: a real server of chat completions with a scripted model, real sandboxes and graders."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
from pathlib import Path

import orjson
import pytest

from tests.data_sources.tasks import make_task
from tests.e2e.conftest import command, environment, here_in, lines_of
from tests.rollout.endpoint.served import KEY, REPAIR, SUBMIT, VIEW, by_turn, calls, chat_endpoint, turns_in

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

SMALL = ["sandbox=local", "rollout.sandbox_concurrency=2", "--tasks", "mine=tasks.jsonl"]


class Shell:
    """`slime-swe` in a folder, beside a server in this process."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    async def start(self, *words: str) -> asyncio.subprocess.Process:
        return await asyncio.create_subprocess_exec(
            *command(*words), cwd=self.folder, env=environment(), start_new_session=True,
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip

    async def __call__(self, *words: str) -> tuple[int, str, str]:
        process = await self.start(*words)
        out, err = await process.communicate()
        assert process.returncode is not None and "Traceback" not in err.decode(), err.decode()
        return process.returncode, out.decode(), err.decode()

    def read(self, *words: str) -> tuple[int, str, str]:
        """A command without a process, which takes a second to import what it needs."""
        done = here_in(self.folder)(*words)
        assert "Traceback" not in done.stderr, done.stderr
        return done.returncode, done.stdout, done.stderr

    async def evaluate(self, endpoint, *words: str) -> tuple[int, str, str]:
        return await asyncio.to_thread(self.read, "evaluate", endpoint.url, "--model", "large", *SMALL, *words)


@pytest.fixture
def shell(tmp_path) -> Shell:
    tasks = [make_task(f"calc-{number}") for number in range(4)]
    (tmp_path / "tasks.jsonl").write_bytes(b"\n".join(orjson.dumps(task.to_dict()) for task in tasks))
    return Shell(tmp_path)


async def test_an_endpoint_is_evaluated_and_every_reader_reads_it(shell):
    async with chat_endpoint(by_turn(*REPAIR)) as endpoint:
        code, out, err = await shell.evaluate(
            endpoint,
            "--samples",
            "2",
            "--concurrency",
            "3",
            "--output",
            "kept",
            "--price",
            "in=1,out=10,cached=0.1",
            "--json",
        )
    assert code == 0, err
    printed = json.loads(out)
    assert (printed["model"], printed["endpoint"], printed["agent"]) == ("large", endpoint.url, "native")
    assert (printed["complete"], printed["left"], printed["episodes"]) == (True, 0, 8)
    mine = printed["sets"]["mine"]
    assert (mine["tasks"], mine["episodes"], mine["solve_rate"], mine["turns"]) == (4, 8, 1.0, 3.0)
    assert (mine["pass_at_k"], mine["pass_hat_k"]) == ({"2": 1.0}, {"2": 1.0})
    assert mine["tokens"] == {"prompt": 8 * 1200, "cached": 8 * 900, "completion": 8 * 30}
    dollars = (300 * 1 + 900 * 0.1 + 30 * 10) / 1e6  # of an episode
    assert mine["dollars_per_episode"] == pytest.approx(dollars)
    assert mine["dollars_per_solved_task"] == pytest.approx(2 * dollars)
    assert printed["spent"] == {
        "prompt": 9600,
        "cached": 7200,
        "completion": 240,
        "dollars": pytest.approx(8 * dollars),
    }

    code, out, err = shell.read("episodes", "kept", "--list")
    assert code == 0 and out.splitlines()[1].split()[2:] == ["calc-0", "solved", "1.0", "3", "30", "submitted"]
    code, out, err = shell.read("episodes", "kept")
    assert (
        code == 0 and "──── assistant\nLet me look." in out and '"path":"calc.py"' in out and "+    return a + b" in out
    )
    for format, there in (
        ("messages", "m.jsonl"),
        ("predictions", "p/mine-rollout-1.jsonl"),
        ("mini", "n/mine-rollout-1/calc-0-0.traj.json"),
    ):
        code, out, err = shell.read("export", "kept", "--to", format, "--out", there.partition("/")[0])
        assert code == 0 and (shell.folder / there).exists(), err
    # A process, since Inspect changes the asyncio of one whose loop runs.
    code, out, err = await shell("export", "kept", "--to", "inspect", "--out", "i")
    assert code == 0 and (shell.folder / "i").exists(), err
    line = lines_of(shell.folder / "m.jsonl")[0]
    assert [message["role"] for message in line["messages"]][:4] == ["system", "user", "assistant", "tool"]
    assert line["solved"] is True and line["tools"]
    code, out, err = shell.read("export", "kept", "--to", "atif", "--out", "a")
    assert code == 2 and "no tokens" in err
    code, out, err = shell.read("report", "kept", "--out", "report.html")
    assert code == 0 and (shell.folder / "report.html").is_file(), err
    assert "tokenizer" not in err + out


async def test_two_endpoints_are_compared(shell):
    async with chat_endpoint(by_turn(*REPAIR)) as good, chat_endpoint(by_turn(VIEW, SUBMIT)) as bad:
        for endpoint, name in ((bad, "bad"), (good, "good")):
            code, _, err = await shell.evaluate(endpoint, "--output", name)
            assert code == 0, err
    code, out, err = shell.read("compare", "bad", "good", "--json")
    assert code == 0, err
    mine = json.loads(out)["sets"]["mine"]
    assert (mine["a"]["solve_rate"], mine["b"]["solve_rate"]) == (0.0, 1.0)
    shutil.copytree(shell.folder / "good", shell.folder / "copy")
    code, _, err = shell.read("compare", "bad", "good,copy")
    assert code == 2 and "are no repetitions" in err


@pytest.mark.parametrize(
    "number", [signal.SIGKILL, pytest.param(signal.SIGINT, marks=pytest.mark.extended("ending signals"))]
)
async def test_a_killed_evaluation_goes_on_and_plays_nothing_twice(number, shell):
    words = ["--samples", "2", "--concurrency", "2", "--output", "kept", "--json"]
    async with chat_endpoint(by_turn(*REPAIR), seconds=0.3) as endpoint:
        process = await shell.start("evaluate", endpoint.url, "--model", "large", *SMALL, *words)
        journal = shell.folder / "kept" / "evaluations.jsonl"
        while not (journal.exists() and len(lines_of(journal)) >= 3):
            assert process.returncode is None
            await asyncio.sleep(0.05)
        os.killpg(process.pid, number)
        _, err = await process.communicate()
        if number == signal.SIGINT:
            assert process.returncode == 130 and b"with --resume go on" in err
        before = lines_of(journal)
        assert 3 <= len(before) < 8
        code, _, err = shell.read("compare", "kept", "kept")
        assert code == 2 and "cut short" in err
        endpoint.requests.clear()
        code, out, err = await shell.evaluate(endpoint, *words, "--resume")
        assert code == 0, err
        assert f"{len(before)} of 8 episodes were played before" in err
        assert sum(turns_in(asked) == 0 for asked in endpoint.asked) == 8 - len(before)
    assert endpoint.most == 2
    lines = lines_of(journal)
    assert lines[: len(before)] == before
    assert sorted(line["index"] for line in lines) == list(range(8))
    printed = json.loads(out)
    assert printed["complete"] and printed["sets"]["mine"]["episodes"] == 8
    assert printed["sets"]["mine"]["outcomes"] == {f"calc-{number}": [1, 1] for number in range(4)}


async def test_broken_episodes_are_played_again_by_a_resume(shell):
    refused = (400, {"error": {"message": "tool_choice is odd"}}, {})
    words = ["--output", "kept", "--concurrency", "1", "--json", "rollout.max_attempts=1"]
    async with chat_endpoint(by_turn(*REPAIR), fail=[refused]) as endpoint:
        code, out, err = await shell.evaluate(endpoint, *words)
        assert code == 0, err
        assert json.loads(out)["sets"]["mine"]["infrastructure_failures"] == 1
        code, out, err = await shell.evaluate(endpoint, *words, "--resume")
    assert code == 0, err
    mine = json.loads(out)["sets"]["mine"]
    assert (mine["infrastructure_failures"], mine["episodes"], mine["solve_rate"]) == (0, 4, 1.0)
    first, second, third, again = (line["index"] for line in lines_of(shell.folder / "kept" / "evaluations.jsonl"))
    assert ({first, second, third}, again) == ({1, 2, 3}, 0)


async def test_a_spent_budget_begins_no_more_and_is_said(shell):
    words = ["--concurrency", "1", "--output", "kept"]
    async with chat_endpoint(by_turn(*REPAIR)) as endpoint:
        code, out, err = await shell.evaluate(endpoint, *words, "--budget", "tokens=2k")
        assert code == 1, err
        assert "INCOMPLETE: solve rate of what was played" in out and "2 of 4 episodes were not played" in " ".join(
            out.split()
        )
        code, _, err = shell.read("compare", "kept", "kept")
        assert code == 2 and "up to 2 of its 4 episodes were not played" in err
        code, _, err = shell.read("report", "kept", "--out", "cut.html")
        assert code == 0 and "INCOMPLETE: up to 2 of 4" in (shell.folder / "cut.html").read_text(), err
        endpoint.requests.clear()
        code, out, err = await shell.evaluate(endpoint, *words, "--budget", "tokens=2k", "--resume", "--json")
        assert code == 1 and json.loads(out)["left"] == 2 and not endpoint.asked, err
        budget = ["--price", "in=1,out=10", "--budget", "dollars=1,tokens=1M"]
        code, out, err = await shell.evaluate(endpoint, *words, *budget, "--resume", "--json")
    assert code == 0, err
    printed = json.loads(out)
    assert printed["complete"] and printed["sets"]["mine"]["episodes"] == 4
    assert printed["spent"]["prompt"] == 4 * 1200


async def test_a_rate_limit_is_waited_for(shell):
    busy = (429, {"error": {"message": "slow down"}}, {"Retry-After": "0"})
    async with chat_endpoint(by_turn(*REPAIR), fail=[busy, busy, None, (503, {}, {"Retry-After": "0.01"})]) as endpoint:
        code, out, err = await shell.evaluate(endpoint, "--concurrency", "1", "--output", "kept", "--json")
    assert code == 0, err
    assert json.loads(out)["sets"]["mine"]["solve_rate"] == 1.0
    retries = [
        line["episode"]["counters"]["engine_retries"] for line in lines_of(shell.folder / "kept" / "evaluations.jsonl")
    ]
    assert {"http_429": 2, "http_503": 1} in retries


async def test_a_refusal_ends_the_evaluation_and_what_was_played_is_kept(shell):
    refusal = (402, {"error": {"message": "no more credit"}}, {})
    words = ["--concurrency", "1", "--output", "kept", "--json"]
    async with chat_endpoint(by_turn(*REPAIR), fail=[None] * 6 + [refusal]) as endpoint:
        code, _, err = await shell.evaluate(endpoint, *words)
        assert code == 2 and "status 402: no more credit" in err and "what was played is in kept" in err
        assert len(lines_of(shell.folder / "kept" / "evaluations.jsonl")) == 2
        code, _, err = await shell.evaluate(endpoint, *words, "--resume", "rollout.max_turns=7")
        assert code == 2 and "evaluates something else: rollout.max_turns was 100 and is 7" in err
        code, _, err = await shell.evaluate(endpoint, *words)
        assert code == 2 and "add --resume" in err
        code, out, err = await shell.evaluate(endpoint, *words, "--resume")
    assert code == 0, err
    assert json.loads(out)["spent"]["completion"] == 4 * 30


async def test_an_agent_that_its_sandbox_can_t_hold_is_refused(shell):
    async with chat_endpoint(by_turn(*REPAIR)) as endpoint:
        code, _, err = await shell.evaluate(endpoint, "agent=mini_swe_agent", "--output", "kept")
    assert code == 2 and "which local sandboxes can't hold" in err and not (shell.folder / "kept").exists()


async def test_what_is_wrong_with_an_endpoint_is_said_at_once_and_leaves_nothing(shell, monkeypatch):
    before = sorted(shell.folder.iterdir())
    key = ["--key-variable", "LARGE_API_KEY", "--output", "kept"]
    async with chat_endpoint(by_turn(*REPAIR), key=KEY) as endpoint:
        monkeypatch.setenv("LARGE_API_KEY", "sk-wrong-9876543210")
        code, _, err = await shell.evaluate(endpoint, *key)
        assert code == 2 and "status 401" in err and "--key-variable" in err and "sk-wrong" not in err
        monkeypatch.delenv("LARGE_API_KEY")
        code, _, err = await shell.evaluate(endpoint, *key)
        assert code == 2 and "has no such variable" in err
        monkeypatch.setenv("LARGE_API_KEY", KEY)
        code, _, err = await shell.evaluate(endpoint, *key, "--model", "larger")
        assert code == 2 and "There is no model 'larger': the endpoint has large" in err
        assert not endpoint.asked
    code, _, err = await shell.evaluate(endpoint)  # it is gone
    assert code == 2 and "can't be reached" in err and "is the address right" in err
    assert sorted(shell.folder.iterdir()) == before


async def test_the_key_is_in_nothing_that_is_written(shell, monkeypatch):
    leak = calls(
        {
            "id": "c",
            "type": "function",
            "function": {"name": "bash", "arguments": json.dumps({"command": f"echo {KEY}"})},
        }
    )
    monkeypatch.setenv("LARGE_API_KEY", KEY)
    words = ["--key-variable", "LARGE_API_KEY", "--output", "kept"]
    async with chat_endpoint(by_turn(leak, *REPAIR), key=KEY) as endpoint:
        code, out, err = await shell.evaluate(endpoint, *words)
    assert code == 0, err
    assert len(endpoint.asked) == 16
    written = [path for path in (shell.folder / "kept").rglob("*") if path.is_file()]
    assert len(written) >= 5
    assert not [path for path in written if KEY.encode() in path.read_bytes()]
    assert KEY not in out + err
