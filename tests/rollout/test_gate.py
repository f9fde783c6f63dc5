"""`Gate`: episodes pause at their model calls and go on, or end there."""

from __future__ import annotations

import asyncio
import sys
from argparse import Namespace
from typing import ClassVar

import pytest
from aiohttp import web

from slime_swe.rollout import slime_plugin
from slime_swe.rollout.client import Gate
from slime_swe.rollout.loop_scope import gate_of_loop
from slime_swe.rollout.replies import EngineAborted
from slime_swe.rollout.scripted import ScriptedEngine, serve
from slime_swe.sample import Sample
from tests.rollout.support import FIX, PARAMS, SUBMIT, make_args, make_sample


async def test_calls_wait_at_a_closed_gate_and_are_refused_while_nobody_wants_them():
    gate = Gate()
    await gate.wait()
    gate.close()
    waiting = [asyncio.ensure_future(gate.wait()) for _ in range(3)]
    await asyncio.sleep(0)
    gate.open()
    gate.close()  # before any of them has run
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert gate.is_closed and not any(one.done() for one in waiting)
    gate.open()
    await asyncio.gather(*waiting)
    unwanted = True
    gate.stop_when(lambda: unwanted)
    with pytest.raises(EngineAborted, match="wants no more"):
        await gate.wait()
    unwanted = False
    await gate.wait()


def test_each_event_loop_has_a_gate_of_its_own():
    async def stop() -> Gate:
        gate = await gate_of_loop()
        assert gate is await gate_of_loop() and not gate.is_closed
        gate.close()
        return gate

    assert asyncio.run(stop()) is not asyncio.run(stop())


class SlowEngine:
    """An engine that keeps each request until `answering` is set, and sets `asked` when it has one."""

    def __init__(self, engine: ScriptedEngine) -> None:
        self.engine, self.asked, self.answering = engine, asyncio.Event(), asyncio.Event()
        self.requests = 0

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.requests += 1
        self.asked.set()
        await self.answering.wait()
        return await self.engine.handle(request)


async def test_episodes_pause_in_the_middle_of_a_turn_and_cost_their_budgets_nothing(scripted, checkpoint, tmp_path):
    gate = await gate_of_loop()
    async with scripted(FIX, SUBMIT) as engine:
        slow_engine = SlowEngine(engine)
        async with serve(slow_engine.handle) as url:
            args = make_args(checkpoint, url, tmp_path, swe_time_budget=1.0)
            playing = [asyncio.ensure_future(slime_plugin.generate(args, make_sample(i), PARAMS)) for i in range(2)]
            while slow_engine.requests < 2:
                await asyncio.sleep(0)
            calls = 0

            async def abort() -> None:
                nonlocal calls
                calls += 1
                if calls == 2:  # the requests were not there yet at the first
                    engine.aborts = [5, 0]
                    slow_engine.answering.set()

            await gate.drain(abort, interval=0.05)
            assert (calls, gate.inside, gate.is_closed) == (2, 0, True)
            assert not (await asyncio.wait(playing, timeout=1.5))[0]
            assert slow_engine.requests == 2
            gate.open()
            samples = await asyncio.gather(*playing)
    for sample in samples:
        assert sample.status is Sample.Status.COMPLETED
        assert sample.metadata["episode"]["turns"] == 2
        assert sample.metadata["episode"]["timings"]["engine"] > 1.5
        assert "+    return a + b" in sample.metadata["episode"]["patch"]
        trained = [t for t, mask in zip(sample.tokens[-len(sample.loss_mask) :], sample.loss_mask, strict=True) if mask]
        assert engine.tokenizer.decode(trained) == FIX + SUBMIT
    assert slow_engine.requests == 6


async def test_a_pause_is_not_counted_against_the_attempts_of_a_turn(scripted, checkpoint, tmp_path):
    gate = await gate_of_loop()
    async with scripted(SUBMIT) as engine:
        slow_engine = SlowEngine(engine)
        async with serve(slow_engine.handle) as url:
            args = make_args(checkpoint, url, tmp_path)
            playing = asyncio.ensure_future(slime_plugin.generate(args, make_sample(), PARAMS))
            for _ in range(8):  # more than its attempts
                await asyncio.wait_for(slow_engine.asked.wait(), 60)
                slow_engine.asked.clear()
                engine.aborts = [0]

                async def abort() -> None:
                    slow_engine.answering.set()

                await gate.drain(abort)
                slow_engine.answering.clear()
                gate.open()
            slow_engine.answering.set()
            assert (await playing).status is Sample.Status.COMPLETED


async def test_episodes_end_where_slime_s_flag_says_that_they_are_unwanted(scripted, checkpoint, tmp_path, monkeypatch):
    """A stand-in for SLiME's; tests/contract has the real one."""

    class OnceOnly(type):
        _instances: ClassVar = {}

    class GenerateState(metaclass=OnceOnly):
        aborted = False

    state = OnceOnly._instances[GenerateState] = GenerateState()
    monkeypatch.setitem(sys.modules, "slime.rollout.sglang_rollout", Namespace(GenerateState=GenerateState))
    async with scripted(SUBMIT) as engine:
        slow_engine = SlowEngine(engine)
        async with serve(slow_engine.handle) as url:
            args = make_args(checkpoint, url, tmp_path)
            playing = asyncio.ensure_future(slime_plugin.generate(args, make_sample(), PARAMS))
            await slow_engine.asked.wait()
            state.aborted = True
            engine.aborts = [3]
            slow_engine.answering.set()
            assert (await playing).status is Sample.Status.ABORTED
            assert slow_engine.requests == 1
            state.aborted = False
            assert (await slime_plugin.generate(args, make_sample(), PARAMS)).status is Sample.Status.COMPLETED
