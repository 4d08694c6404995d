"""Calls in virtual time: the real lanes, with nothing beside the world that could tell two runs apart."""

from __future__ import annotations

import asyncio

import pytest

from headrace.core.calls import Calling, Retry
from headrace.task.calls import Lane
from simulator.calls import VirtualCalls, answer
from simulator.world import World


def lane_of(world, function, *, timeout_ms=50, attempts=None):
    calls = VirtualCalls(world)
    return calls, Lane(calls, function, Calling(2, timeout_ms, Retry(attempts, 2, 20)))


def run(world, until):
    world.run(until, lambda: False)


def test_calls_take_virtual_time_and_no_more_at_once_than_allowed():
    world = World(1)
    began = []

    async def slow(argument):
        began.append((argument, world.now))
        await asyncio.sleep(0.01)
        return argument * 2

    _, lane = lane_of(world, slow)
    lane.put(enumerate([5, 6, 7]))
    run(world, 15)
    assert [(done.place, done.result) for done in lane.take()] == [(0, 10), (1, 12)]
    run(world, 25)
    assert [done.result for done in lane.take()] == [14]
    assert [argument for argument, _ in began] == [5, 6, 7]
    assert began[2][1] == pytest.approx(10)
    assert lane.unfinished == 0


def test_what_gets_no_answer_is_given_up_and_tried_again():
    world = World(1)
    asked = []

    async def silent_at_first(argument):
        asked.append(world.now)
        if len(asked) == 1:
            await asyncio.sleep(3600)
        return argument

    _, lane = lane_of(world, silent_at_first)
    lane.put([(0, "x")])
    run(world, 49)
    assert lane.take() == []
    run(world, 60)
    (done,) = lane.take()
    assert (done.result, done.attempts, lane.tally.timeouts) == ("x", 2, 1)


def test_whoever_ends_hears_nothing_any_more():
    world = World(1)
    ended = []

    async def cancelled(argument):
        try:
            await asyncio.sleep(1)
        finally:
            ended.append(argument)

    calls, lane = lane_of(world, cancelled)
    lane.put(enumerate("ab"))
    run(world, 1)
    lane.close()
    calls.close()
    assert sorted(ended) == ["a", "b"]
    run(world, 5000)
    assert lane.take() == []


def test_a_simulated_service_answers_in_a_simulation_only():
    with pytest.raises(TypeError, match="outside a simulation"):
        asyncio.run(answer())
