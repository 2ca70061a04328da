"""What probes are answered: once, and at every change."""

import asyncio

import pytest

from evenq.errors import NotFound, TooManyRequests
from evenq.serving.fields import write_bytes
from evenq.serving.front.health import LIVENESS, NOT_SERVING, READINESS, SERVICE_UNKNOWN, SERVING, WATCHERS_MAX, Health
from evenq.serving.rpc import RpcContext

CONTEXT = RpcContext("m", [], "127.0.0.1:1", None)


def handlers(health):
    check, watch = health.rpcs()
    return check.handler, watch.handler


async def test_a_check_answers_the_state_of_the_server_and_of_named_services():
    health = Health()
    check, _ = handlers(health)
    assert await check(b"", CONTEXT) == SERVING
    health.set_serving(serving=False)
    assert await check(b"", CONTEXT) == NOT_SERVING
    assert not health.serving
    health.set_serving(serving=True, service="evenq.v1.Data")
    assert await check(write_bytes(1, b"evenq.v1.Data"), CONTEXT) == SERVING
    with pytest.raises(NotFound, match="'nothing' has no health state; use the empty name"):
        await check(write_bytes(1, b"nothing"), CONTEXT)


async def test_the_names_of_probes_are_known_readiness_says_what_the_empty_name_says_and_liveness_outlives_a_drain():
    health = Health()
    check, _ = handlers(health)

    async def states():
        return [await check(write_bytes(1, name.encode()), CONTEXT) for name in ("", READINESS, LIVENESS)]

    assert await states() == [SERVING, SERVING, SERVING]
    health.set_serving(serving=False)  # a drain, a full disk
    assert await states() == [NOT_SERVING, NOT_SERVING, SERVING]
    health.set_serving(serving=True, service=READINESS)
    assert await states() == [SERVING, SERVING, SERVING]
    assert health.alive
    health.set_serving(serving=False, service=LIVENESS)  # a poisoned store
    assert await states() == [SERVING, SERVING, NOT_SERVING]
    assert not health.alive


async def test_a_watch_tells_each_change_once():
    health = Health()
    _, watch = handlers(health)
    states = watch(b"", CONTEXT)
    assert await anext(states) == SERVING
    pending = asyncio.ensure_future(anext(states))
    health.set_serving(serving=True)  # no change
    await asyncio.sleep(0)
    assert not pending.done()
    health.set_serving(serving=False)
    assert await pending == NOT_SERVING
    unknown = watch(write_bytes(1, b"later"), CONTEXT)
    assert await anext(unknown) == SERVICE_UNKNOWN
    health.set_serving(serving=True, service="later")
    assert await anext(unknown) == SERVING
    await states.aclose()
    await unknown.aclose()


async def test_watches_have_a_maximum_and_an_ended_one_makes_room():
    health = Health()
    _, watch = handlers(health)
    watches = [watch(b"", CONTEXT) for _ in range(WATCHERS_MAX)]
    for one in watches:
        await anext(one)
    with pytest.raises(TooManyRequests, match=str(WATCHERS_MAX)):
        await anext(watch(b"", CONTEXT))
    await watches.pop().aclose()
    watches.append(watch(b"", CONTEXT))
    assert await anext(watches[-1]) == SERVING
    for one in watches:
        await one.aclose()


async def test_a_watch_tells_the_end_even_if_it_comes_while_the_state_before_is_sent():
    health = Health()
    _, watch = handlers(health)
    states = watch(b"", CONTEXT)
    assert await anext(states) == SERVING
    health.close()  # no client asked for the next state yet
    assert [state async for state in states] == [NOT_SERVING]
