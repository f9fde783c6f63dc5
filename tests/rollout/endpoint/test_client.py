"""The endpoint's client against a real server: retries, limits, the names of options, the key."""

from __future__ import annotations

import pytest

from slime_swe.errors import UserError
from slime_swe.rollout.endpoint.client import EndpointClient, Refused, key_of
from slime_swe.rollout.endpoint.replies import Budget, Passing, Prices, Spending, Unfit, Usage
from slime_swe.rollout.replies import EngineError
from tests.rollout.endpoint.served import KEY, ChatEndpoint, by_turn, chat_endpoint

HELLO = [{"role": "user", "content": "Hello."}]
SAID = {"role": "assistant", "content": "Hi."}
PARAMS = {"max_new_tokens": 50, "temperature": 1.0, "top_p": 1.0}


def client_of(endpoint: ChatEndpoint, folder, **changes) -> EndpointClient:
    values = {"spending": Spending(folder / "spending.jsonl"), "pause": 0.001, "attempts": 3}
    return EndpointClient(endpoint.url, "large", **(values | changes))


def failing(status: int, message: str = "no", **headers: str):
    return status, {"error": {"message": message}}, headers


async def test_what_passes_is_asked_again_and_counted(tmp_path):
    fail = [failing(503), failing(429, **{"Retry-After": "0.01"})]
    async with chat_endpoint(by_turn(SAID), fail=fail) as endpoint, client_of(endpoint, tmp_path) as client:
        reply = await client.complete(HELLO, [], PARAMS)
    assert (reply.text, dict(reply.retries)) == ("Hi.", {"http_503": 1, "http_429": 1})
    assert "tools" not in endpoint.requests[0]


async def test_what_does_not_pass_is_infrastructure(tmp_path):
    async with (
        chat_endpoint(by_turn(SAID), fail=[failing(503)] * 9) as endpoint,
        client_of(endpoint, tmp_path) as client,
    ):
        with pytest.raises(Passing, match="status 503"):
            await client.complete(HELLO, [], PARAMS)
        assert len(endpoint.requests) == 3
        endpoint.fail[:] = [failing(429, **{"Retry-After": "3600"})]
        with pytest.raises(Passing, match="status 429"):  # not for an hour
            await client.complete(HELLO, [], PARAMS)
        endpoint.fail[:] = [failing(400, "odd")]
        with pytest.raises(Unfit, match="odd"):
            await client.complete(HELLO, [], PARAMS)
    async with client_of(endpoint, tmp_path, attempts=1) as client:
        with pytest.raises(Passing, match="can't be reached"):
            await client.complete(HELLO, [], PARAMS)


async def test_an_endpoint_that_does_not_reply_in_time_is_not_asked_again(tmp_path):
    async with chat_endpoint(by_turn(SAID), seconds=5.0) as endpoint:
        async with client_of(endpoint, tmp_path, timeout=0.1) as client:
            with pytest.raises(EngineError, match=r"did not reply within 0\.1 s"):
                await client.complete(HELLO, [], PARAMS)
        assert len(endpoint.requests) == 1


async def test_a_newer_name_of_the_limit_is_taken_up_for_good(tmp_path):
    refusal = failing(400, "Unsupported parameter: 'max_tokens'. Use 'max_completion_tokens' instead.")
    async with chat_endpoint(by_turn(SAID), fail=[refusal]) as endpoint, client_of(endpoint, tmp_path) as client:
        await client.complete(HELLO, [], PARAMS)
        await client.complete(HELLO, [], PARAMS)
    assert [sorted(request) for request in endpoint.requests[1:]] == [
        ["max_completion_tokens", "messages", "model", "temperature"]
    ] * 2


async def test_a_key_that_an_error_repeats_is_not_passed_on(tmp_path):
    async with (
        chat_endpoint(by_turn(SAID), key="another") as endpoint,
        client_of(endpoint, tmp_path, key=KEY) as client,
    ):
        with pytest.raises(Refused, match=r"Incorrect API key provided: Bearer \[key\]"):
            await client.require_usable([])
        assert KEY not in repr(client)


async def test_a_word_for_a_key_changes_no_reply(tmp_path):
    """Servers of one's own take any key, and get one such as `i` or `password`."""
    for key in ("i", "password"):
        said = {"role": "assistant", "content": f"{key} is in here."}
        async with chat_endpoint(by_turn(said), key=key) as endpoint, client_of(endpoint, tmp_path, key=key) as client:
            assert (await client.complete(HELLO, [], PARAMS)).text == said["content"]


async def test_a_server_that_is_busy_is_usable_and_one_that_takes_no_tools_is_not(tmp_path):
    tool = {"type": "function", "function": {"name": "a", "parameters": {}}}

    def without_tools(asked):
        assert asked["tools"] == [tool]
        return SAID

    async with chat_endpoint(without_tools) as endpoint, client_of(endpoint, tmp_path) as client:
        await client.require_usable([tool])
        assert client.spending.used == Usage()
        for failure in (failing(429), failing(503)):
            endpoint.fail_first = failure
            await client.require_usable([tool])
        endpoint.fail_first = failing(400, '"auto" tool choice requires --enable-auto-tool-choice')
        with pytest.raises(UserError, match="enable-auto-tool-choice"):
            await client.require_usable([tool])


async def test_replies_without_usage_are_refused_where_they_are_to_be_counted(tmp_path):
    spending = Spending(tmp_path / "s.jsonl", budget=Budget(tokens=10))
    async with chat_endpoint(by_turn(SAID), usage=False) as endpoint:
        async with client_of(endpoint, tmp_path) as client:
            assert (await client.complete(HELLO, [], PARAMS)).completion_tokens == 0
        async with client_of(endpoint, tmp_path, spending=spending) as client:
            with pytest.raises(UserError, match="no `usage`"):
                await client.complete(HELLO, [], PARAMS)


def test_spending_goes_on_after_a_crash(tmp_path):
    file, prices = tmp_path / "spending.jsonl", Prices(prompt=1.0, completion=10.0, cached=0.1)
    first = Spending.of(file, prices, Budget(dollars=0.001))
    first.add(Usage(100, 10, 50))
    assert first.dollars == pytest.approx((50 + 5 + 100) / 1e6) and not first.is_spent
    file.write_bytes(file.read_bytes() + b'{"prompt":9')  # killed while it wrote
    second = Spending.of(file, prices, Budget(tokens=200))
    assert second.used == Usage(100, 10, 50) and not second.is_spent
    second.add(Usage(80, 10))
    assert Spending.of(file).used == Usage(180, 20, 50)
    assert second.is_spent and Spending.of(file).dollars is None
    assert Spending.of(file, prices, Budget(dollars=0.0003)).is_spent
    assert Spending.of(tmp_path / "none", budget=Budget(tokens=0)).is_spent  # nothing may be spent


def test_a_key_has_no_line_ends(monkeypatch):
    monkeypatch.setenv("SOME_KEY", "abc\ndef")
    with pytest.raises(UserError, match="printable"):
        key_of("SOME_KEY")
    monkeypatch.setenv("SOME_KEY", " abc\n")
    assert key_of("SOME_KEY") == "abc" and key_of("") == ""
