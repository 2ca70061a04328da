"""The producer's loop over a net that answers as the test sets."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from typing import Any

import pytest

from evenq import aio, errors
from evenq.client.options import ProducerOptions
from evenq.client.wiring import ClientContext
from evenq.model import Message, MessageQueue
from evenq.model.lanes import owner_among
from evenq.runtime.clock import Clock, FakeClock, SystemClock
from evenq.wire.stubs.apache.rocketmq.v2 import definition_pb2 as v2
from evenq.wire.stubs.apache.rocketmq.v2 import service_pb2
from evenq.wire.stubs.evenq.v1 import data_pb2, routes_pb2

Answer = Callable[[str, data_pb2.PublishRequest], Awaitable[None]]


class Brokers:
    """A `Net` with brokers a and b that store what `rule` lets pass. An address is the broker's name with port 1."""

    def __init__(self, rule: Answer | None = None, *, queues: Mapping[str, int] | None = None) -> None:
        self.rule = rule
        self.queues = queues or {"a": 2, "b": 2}
        self.closed: set[str] = set()
        """Brokers whose queues the route calls readable only."""
        self.stored: dict[tuple[str, int], list[v2.Message]] = {}
        self.tries: list[tuple[str, list[str]]] = []
        self.running = self.most_running = 0
        self.has_publish = True
        self.leaders: dict[str, tuple[str, int]] = {}
        """Brokers with copies: host and epoch of the leader."""
        self.silent: errors.Error | None = None
        """What every access point answers with instead of a route, `silent_max` times."""
        self.silent_max = 1_000_000
        self.questions = 0

    async def unary(
        self, address: str, method: str, request: bytes, *, timeout_ms: int, metadata: Mapping[str, str] | None = None
    ) -> bytes:
        assert metadata is not None
        assert metadata["x-mq-client-id"]
        match method.rpartition("/")[2]:
            case "QueryRoute":
                self.questions += 1
                if self.silent is not None and self.questions <= self.silent_max:
                    raise self.silent
                return self._route(service_pb2.QueryRouteRequest.FromString(request))
            case "Publish" if self.has_publish:
                return await self._publish(address.partition(":")[0], data_pb2.PublishRequest.FromString(request))
            case "SendMessage":
                sent = service_pb2.SendMessageRequest.FromString(request)
                response = service_pb2.SendMessageResponse(status=v2.Status(code=v2.OK))
                for number, message in enumerate(sent.messages):
                    response.entries.add(
                        status=v2.Status(code=v2.OK), message_id=message.system_properties.message_id, offset=number
                    )
                return response.SerializeToString()
        raise errors.Unsupported(f"{address} does not serve {method}")

    def stream(
        self,
        address: str,
        method: str,
        requests: AsyncIterator[bytes] | bytes,
        *,
        timeout_ms: int | None,
        metadata: Mapping[str, str] | None = None,
    ) -> AsyncIterator[bytes]:
        raise errors.Unsupported(f"{address} does not serve {method}")

    async def close(self) -> None:
        pass

    def _route(self, request: service_pb2.QueryRouteRequest) -> bytes:
        answer = service_pb2.QueryRouteResponse(status=v2.Status(code=v2.OK))
        for broker, count in self.queues.items():
            for number in range(count):
                permission = v2.READ if broker in self.closed else v2.READ_WRITE
                queue = answer.message_queues.add(id=number, permission=permission)
                queue.topic.name, queue.broker.name = request.topic.name, broker
                host = self.leaders.get(broker, (broker, 0))[0]
                queue.broker.endpoints.addresses.add(host=host, port=1)
        response = [routes_pb2.GroupLeader(broker_name=name, epoch=epoch) for name, (_, epoch) in self.leaders.items()]
        return answer.SerializeToString() + routes_pb2.RouteSchemes(leaders=response).SerializeToString()

    async def _publish(self, broker: str, request: data_pb2.PublishRequest) -> bytes:
        self.tries.append((broker, [m.system_properties.message_id for m in request.messages]))
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        response = data_pb2.PublishResponse(status=v2.Status(code=v2.OK), queue=request.queue)
        try:
            if self.rule is not None:
                await self.rule(broker, request)
        except errors.Error as error:
            if isinstance(error, errors.ConnectionFailed):
                raise
            response.status.code, response.status.message = v2.Code.ValueType(error.code), str(error)
            response.closed = isinstance(error, errors.QueueClosed)
            return response.SerializeToString()
        finally:
            self.running -= 1
        kept = self.stored.setdefault((broker, request.queue.queue_id), [])
        response.first_offset = len(kept)
        kept += request.messages
        return response.SerializeToString()

    @property
    def messages(self) -> list[v2.Message]:
        return [message for kept in self.stored.values() for message in kept]


def producer(net: Brokers, *, endpoint: str = "a:1", clock: Clock | None = None, **options: Any) -> aio.Producer:
    context = ClientContext(clock=clock or SystemClock(), rng=random.Random(1), net=net)
    return aio.Producer(
        endpoint=endpoint,
        context=context,
        options=ProducerOptions(**{"retry_first_ms": 1, "retry_max_ms": 5} | options),
    )


def note(body: str, **fields: str) -> Message:
    return Message(topic="t", body=body.encode(), **fields)  # type: ignore[arg-type]  # only text fields are used


async def test_messages_given_together_travel_together_and_each_gets_its_own_place() -> None:
    net = Brokers()
    async with producer(net) as p:
        results = await p.send_batch(note(str(n)) for n in range(400))
    assert len({(r.queue, r.offset) for r in results}) == 400
    assert len(net.tries) <= 8
    assert {len(kept) for kept in net.stored.values()} == {100}  # PR-6


async def test_a_retry_goes_to_another_broker_at_once_with_the_same_message_id() -> None:
    async def down(broker: str, _: data_pb2.PublishRequest) -> None:
        if broker == net.tries[0][0]:
            raise errors.ConnectionFailed("down")

    net = Brokers(down)
    async with producer(net) as p:
        result = await p.send(note("x"))
    (first, ids), (second, ids_again) = net.tries
    assert first != second == result.queue.broker_name
    assert ids == ids_again == [result.message_id]


@pytest.mark.parametrize("key", [None, "key-1"])
async def test_a_closed_queue_costs_no_tries_while_the_route_does_not_know_it_yet(key: str | None) -> None:
    """A drained broker refuses at once; on a busy machine its clients' routes are older than that by a second."""

    async def draining(broker: str, _: data_pb2.PublishRequest) -> None:
        if broker == net.tries[0][0]:
            if len(net.tries) == 8:
                net.closed.add(broker)
            raise errors.QueueClosed("being drained")
        if len(net.tries) < 6:
            raise errors.QueueClosed("being drained, too")

    net = Brokers(draining)
    async with producer(net, max_attempts=3) as p:
        result = await p.send(note("x"), sharding_key=key)
    assert result.queue.broker_name != net.tries[0][0]
    assert len(net.tries) >= 6
    assert len({ids[0] for _, ids in net.tries}) == 1


@pytest.mark.parametrize("brokers", [1, 2])
async def test_a_group_that_changes_its_leader_costs_no_tries(brokers: int) -> None:
    """The leader refuses while it hands over, and is gone before the route knows the next one."""

    async def moving(_: str, __: data_pb2.PublishRequest) -> None:
        if len(net.tries) < 6:
            raise errors.HaNotAvailable("this leader hands over")
        if len(net.tries) < 9:
            raise errors.ConnectionFailed("no server listens")

    net = Brokers(moving, queues=dict.fromkeys("ab"[:brokers], 1))
    async with producer(net, max_attempts=2) as p:
        await p.send(note("x"))
    assert len(net.tries) == 9
    assert len({ids[0] for _, ids in net.tries}) == 1


async def test_a_group_that_finds_no_leader_is_an_error_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("evenq.client.loops.sending.outgoing.LEADERLESS_MS", 200)

    async def too_few(_: str, __: data_pb2.PublishRequest) -> None:
        raise errors.HaNotAvailable("1 of 2 copies in sync")

    net = Brokers(too_few)
    async with producer(net, max_attempts=2, retry_max_ms=1_000) as p:
        with pytest.raises(errors.HaNotAvailable):
            await p.send(note("x"))
    assert 4 <= len(net.tries) < 20, "it pauses between its tries"


@pytest.mark.parametrize(
    "end",
    [
        errors.ConnectionFailed("the connection broke"),
        errors.PersistenceTimeout("another copy leads; whether the record is kept is not known"),
    ],
)
async def test_a_group_whose_leader_died_is_tried_until_another_copy_leads(end: errors.Error) -> None:
    """Decision 66: a leader that is killed says nothing, but the route says that it has copies."""

    async def dead(host: str, _: data_pb2.PublishRequest) -> None:
        if len(net.tries) == 8:
            net.leaders["a"] = ("a-1", 6)
        if host == "a-0":
            raise end

    net = Brokers(dead, queues={"a": 1})
    net.leaders["a"] = ("a-0", 5)
    async with producer(net, max_attempts=2) as p:
        await p.send(note("x"))
    assert len({ids[0] for _, ids in net.tries}) == 1, "one message id, no matter which copy leads"
    assert [host for host, _ in net.tries[:8]] == ["a-0"] * 8
    assert net.tries[-1][0] == "a-1"


async def test_a_group_that_stays_without_a_leader_is_an_error_after_the_send_timeout() -> None:
    async def dead(_: str, __: data_pb2.PublishRequest) -> None:
        raise errors.ConnectionFailed("no server listens")

    net = Brokers(dead, queues={"a": 1})
    net.leaders["a"] = ("a-0", 5)
    async with producer(net, max_attempts=2, send_timeout_ms=400) as p:
        with pytest.raises(errors.RequestTimeout, match="no server listens"):
            await p.send(note("x"))
        await p.send_oneway(note("y"))
        await p.flush()
    assert len([ids for _, ids in net.tries if ids == net.tries[-1][1]]) == 1, "one-way is one attempt"


@pytest.mark.parametrize("silence", [errors.ConnectionFailed("no server listens"), errors.RequestTimeout("hangs")])
async def test_a_producer_that_starts_while_no_copy_leads_waits_for_its_first_route(silence: errors.Error) -> None:
    """Decision 74. Its attempts would be over after three questions."""
    net = Brokers()
    net.silent, net.silent_max = silence, 30
    async with producer(net, endpoint="a-0:1;a-1:1;a-2:1", max_attempts=1) as p:
        await asyncio.gather(*(p.send(note(str(number))) for number in range(3)))
    assert len(net.messages) == 3


async def test_a_producer_whose_copies_never_lead_is_told_after_the_send_timeout_and_sends_later_ones() -> None:
    net = Brokers()
    net.silent = errors.ConnectionFailed("no server listens")
    async with producer(net, endpoint="a-0:1;a-1:1", send_timeout_ms=200) as p:
        for batch in ([note("x")], [note("y"), note("z")]):
            outcomes = await asyncio.gather(*map(p.send, batch), return_exceptions=True)
            assert [type(one) for one in outcomes] == [errors.RequestTimeout] * len(batch)
            assert "no route for topic t within 200 ms" in str(outcomes[0])
            assert str(outcomes[0]).endswith("the message was not sent: no server listens")
        net.silent = None
        await p.send(note("later"))
    assert [message.body for message in net.messages] == [b"later"]


async def test_a_single_access_point_that_does_not_answer_is_an_error_after_the_attempts() -> None:
    net = Brokers()
    net.silent = errors.ConnectionFailed("no server listens")
    async with producer(net, max_attempts=3, send_timeout_ms=600_000) as p:
        with pytest.raises(errors.ConnectionFailed, match="no server listens"):
            await p.send(note("x"))
    assert net.questions == 3


async def test_trouble_with_certificates_is_not_waited_for() -> None:
    net = Brokers()
    net.silent = errors.TlsFailed("the certificate is another one's")
    async with producer(net, endpoint="a-0:1;a-1:1", send_timeout_ms=600_000) as p:
        with pytest.raises(errors.TlsFailed):
            await p.send(note("x"))


async def test_a_call_that_hangs_at_an_old_leader_goes_on_at_the_new_one() -> None:
    """A machine that is gone without a word: nothing refuses the call, and its deadline is far."""

    async def hangs(host: str, _: data_pb2.PublishRequest) -> None:
        if host == "a-0":
            net.leaders["a"] = ("a-1", 6)
            await asyncio.sleep(600)

    net = Brokers(hangs, queues={"a": 1})
    net.leaders["a"] = ("a-0", 5)
    async with producer(net, max_attempts=1, timeout_ms=60_000, send_timeout_ms=600_000) as p:
        async with asyncio.timeout(50):
            await p.send(note("x"))
    assert [host for host, _ in net.tries] == ["a-0", "a-1"]
    assert len({ids[0] for _, ids in net.tries}) == 1


async def test_a_pause_ends_when_the_route_names_another_leader() -> None:
    async def hands_over(host: str, _: data_pb2.PublishRequest) -> None:
        if host == "a-0":
            asyncio.get_running_loop().call_later(0.2, net.leaders.update, {"a": ("a-1", 6)})
            raise errors.HaNotAvailable("this leader hands over")

    net = Brokers(hands_over, queues={"a": 1})
    net.leaders["a"] = ("a-0", 5)
    async with producer(net, retry_first_ms=60_000, retry_max_ms=60_000, send_timeout_ms=600_000) as p:
        async with asyncio.timeout(40):
            await p.send(note("x"))
    assert [host for host, _ in net.tries] == ["a-0", "a-1"]


@pytest.mark.parametrize(
    ("error", "tries"),
    [
        pytest.param(errors.ConnectionFailed("no server listens"), 3, id="who cannot reach its broker"),
        pytest.param(errors.Forbidden("user u may not publish topic t"), 3, id="who may not send"),
        pytest.param(errors.TooManyRequests("full"), 3, id="who meets a full broker"),
        pytest.param(errors.BodyTooLarge("too large"), 1, id="who sends what no retry can help"),
    ],
)
async def test_the_last_error_is_raised_after_the_tries_that_can_help(error: errors.Error, tries: int) -> None:
    async def fails(_: str, __: data_pb2.PublishRequest) -> None:
        raise error

    net = Brokers(fails)
    async with producer(net, max_attempts=3) as p:
        with pytest.raises(type(error), match=str(error)):
            await p.send(note("x"))
    assert len(net.tries) == tries


async def test_one_bad_message_does_not_take_its_batch_with_it() -> None:
    async def refuse(_: str, request: data_pb2.PublishRequest) -> None:
        if any(m.body == b"bad" for m in request.messages):
            raise errors.IllegalMessageTag("bad tag")

    net = Brokers(refuse, queues={"a": 1})
    async with producer(net) as p:
        futures = [await p.send_async(note(text)) for text in ("1", "bad", "2")]
        await p.flush()
        assert isinstance(futures[1].exception(), errors.IllegalMessageTag)
    assert [m.body for m in net.messages] == [b"1", b"2"]


@pytest.mark.parametrize("failing", [("1",), ("1", "2", "3", "bad")], ids=["the first", "all"])
@pytest.mark.parametrize(
    "error", [errors.TooManyRequests("full"), errors.ConnectionFailed("down")], ids=["full", "away"]
)
async def test_ordered_messages_keep_their_order_when_a_batch_with_an_invalid_one_is_split(
    error: errors.Error, failing: tuple[str, ...]
) -> None:
    left = dict.fromkeys(failing, 2)

    async def refuse(_: str, request: data_pb2.PublishRequest) -> None:
        (first, *more) = [m.body.decode() for m in request.messages]
        if not more and left.get(first, 0):
            left[first] -= 1
            raise error
        if "bad" in (first, *more):
            raise errors.IllegalMessageTag("bad tag")

    net = Brokers(queues={"a": 1})
    async with await warmed(net, linger_ms=1_000, max_attempts=20) as p:
        net.rule = refuse
        futures = [await p.send_async(note(text, message_group="g")) for text in ("1", "2", "3", "bad", "4")]
        await p.flush()
        assert isinstance(futures[3].exception(), errors.IllegalMessageTag)
        assert p._gate.messages == p._sending._pending == 0
    assert not any(left.values())
    assert [m.body for m in net.messages] == [b"1", b"2", b"3", b"4"]


async def test_ordered_messages_stay_in_their_queue_and_in_order_through_failures() -> None:
    rng = random.Random(5)

    async def shaky(_: str, __: data_pb2.PublishRequest) -> None:
        await asyncio.sleep(0)
        if rng.random() < 0.4:
            raise errors.ConnectionFailed("shaky")

    net = Brokers(shaky)
    async with producer(net, max_attempts=50, linger_ms=0, batch_messages=3) as p:
        for n in range(60):
            await p.send_async(note(str(n), message_group="order-7"))
            await asyncio.sleep(0)
        await p.flush()
    (kept,) = net.stored.values()
    assert [int(m.body) for m in kept] == list(range(60))
    assert {m.system_properties.message_group for m in kept} == {"order-7"}


async def test_a_server_without_evenq_v1_is_served_with_send_message() -> None:
    net = Brokers()
    net.has_publish = False
    async with producer(net) as p:
        result = await p.send(note("x"))
        assert result.queue.queue_id == -1
        assert (await p.send(note("y"))).offset == 0


async def test_sending_waits_while_too_much_is_pending() -> None:
    gate = asyncio.Event()

    async def hold(_: str, __: data_pb2.PublishRequest) -> None:
        await gate.wait()

    net = Brokers(hold)
    async with producer(net, pending_messages=10) as p:
        for _ in range(10):
            await p.send_async(note("x"))
        eleventh = asyncio.ensure_future(p.send_async(note("x")))
        for _ in range(100):  # whatever can go on now goes on
            await asyncio.sleep(0)
        assert not eleventh.done()
        gate.set()
        await eleventh


async def test_one_batch_per_queue_is_on_its_way_at_a_time() -> None:
    async def slow(_: str, __: data_pb2.PublishRequest) -> None:
        await asyncio.sleep(0.001)

    net = Brokers(slow, queues={"a": 1})
    async with producer(net, batch_messages=5) as p:
        await p.send_batch(note("x") for _ in range(100))
    assert net.most_running == 1
    assert len(net.tries) == 20


async def test_closing_fails_what_cannot_be_sent_in_time() -> None:
    async def hang(_: str, __: data_pb2.PublishRequest) -> None:
        await asyncio.Event().wait()

    p = producer(Brokers(hang))
    future = await p.send_async(note("x"))
    with pytest.raises(errors.RequestTimeout):
        await p.close(timeout_ms=50)
    assert isinstance(future.exception(), errors.ConnectionFailed)
    with pytest.raises(errors.ConnectionFailed):
        await p.send(note("y"))


@pytest.mark.parametrize("error", [errors.QueueClosed("closed"), errors.BadRequest("invalid")], ids=["moving", "apart"])
async def test_closing_fails_messages_whose_next_try_is_not_chosen_yet(error: errors.Error) -> None:
    """A failed message was in no batch while the route was fetched, or while one message after the other was tried."""
    held = asyncio.Event()
    net = Brokers(queues={"a": 1})

    async def fail(_: str, request: data_pb2.PublishRequest) -> None:
        if len(request.messages) == 1 and isinstance(error, errors.BadRequest):
            held.set()
            await asyncio.Event().wait()
        raise error

    p = await warmed(net, batch_messages=3)
    net.rule = fail
    if isinstance(error, errors.QueueClosed):
        answered = net.unary

        async def unary(address: str, method: str, request: bytes, **rest: Any) -> bytes:
            if method.endswith("QueryRoute"):
                held.set()
                await asyncio.Event().wait()
            return await answered(address, method, request, **rest)

        net.unary = unary  # type: ignore[method-assign]  # from now on no route comes
    futures = [await p.send_async(note(str(number))) for number in range(3)]
    await held.wait()
    with pytest.raises(errors.RequestTimeout):
        await p.close(timeout_ms=20)
    for future in futures:
        assert isinstance(future.exception(), errors.ConnectionFailed)
    assert p._gate.messages == p._sending._pending == 0


async def test_a_send_that_takes_too_long_over_all_its_tries_is_told_so() -> None:
    async def hang(_: str, __: data_pb2.PublishRequest) -> None:
        await asyncio.Event().wait()

    net = Brokers(hang)
    p = producer(net, send_timeout_ms=100, max_attempts=1_000)
    with pytest.raises(errors.RequestTimeout, match="100 ms"):
        await p.send(note("x"))
    await p.close()

    async def down(_: str, __: data_pb2.PublishRequest) -> None:
        raise errors.ConnectionFailed("down")

    net.rule = down
    async with producer(net, send_timeout_ms=1_000, max_attempts=1_000) as p:
        with pytest.raises(errors.RequestTimeout):
            await p.send(note("x"))
        assert len(net.tries) > 3
        net.rule = None
        await p.send(note("y"))


async def test_a_message_that_is_late_is_not_sent_and_its_neighbours_have_their_own_time() -> None:
    """Sweeps are up to 1 s apart; a late message would give its batch a deadline of 1 ms."""
    answer = asyncio.Event()

    async def hold(_: str, __: data_pb2.PublishRequest) -> None:
        await answer.wait()

    clock, net = FakeClock(), Brokers(queues={"a": 1})
    p = producer(net, clock=clock, send_timeout_ms=120_000, linger_ms=0)
    await clock.during(p.send(note("first")))
    net.rule = hold
    futures = [await p.send_async(note("1", message_group="g"))]
    await clock.advance(500)
    futures.append(await p.send_async(note("2", message_group="g")))
    await clock.advance(100_000)
    futures.append(await p.send_async(note("3", message_group="g")))
    await clock.advance(20_300)
    answer.set()
    await clock.until(futures[2].done)
    assert [len(ids) for _, ids in net.tries] == [1, 1, 1]
    assert [m.body for m in net.messages] == [b"first", b"1", b"3"]
    assert [type(future.exception()) for future in futures] == [type(None), errors.RequestTimeout, type(None)]
    await clock.during(p.close())


async def test_messages_of_a_split_block_are_late_too_while_a_route_is_fetched() -> None:
    held = asyncio.Event()

    async def closed(_: str, __: data_pb2.PublishRequest) -> None:
        raise errors.QueueClosed("closed")

    net = Brokers(queues={"a": 1})
    p = await warmed(net, send_timeout_ms=100)
    net.rule = closed
    answered = net.unary

    async def unary(address: str, method: str, request: bytes, **rest: Any) -> bytes:
        if method.endswith("QueryRoute"):
            held.set()
            await asyncio.Event().wait()
        return await answered(address, method, request, **rest)

    net.unary = unary  # type: ignore[method-assign]  # from now on no route comes
    batch = asyncio.ensure_future(p.send_batch(note(str(n)) for n in range(3)))
    await held.wait()
    with pytest.raises(errors.RequestTimeout, match="100 ms"):
        await asyncio.wait_for(batch, 5)
    assert p._gate.messages == p._sending._pending == 0
    await p.close()


async def test_a_sharding_key_keeps_its_queue_and_a_selector_chooses_one() -> None:
    net = Brokers()
    async with producer(net) as p:
        results = await p.send_batch((note(str(n)) for n in range(20)), sharding_key="order-1")
        assert len({result.queue for result in results}) == 1
        assert [result.offset for result in results] == list(range(20))

        def last(queues: Sequence[MessageQueue]) -> MessageQueue:
            return queues[-1]

        assert (await p.send(note("x"), selector=last)).queue == MessageQueue("t", "b", 1)
        with pytest.raises(errors.BadRequest, match="not one of the 4 queues"):
            await p.send(note("x"), selector=lambda _: MessageQueue("t", "z", 0))
        with pytest.raises(errors.BadRequest, match="ZeroDivisionError"):
            await p.send(note("x"), selector=lambda _: 1 // 0)  # type: ignore[arg-type,return-value]  # on purpose
    assert not any(m.system_properties.HasField("message_group") for m in net.messages)


async def test_a_selected_queue_is_kept_while_its_broker_is_away() -> None:
    async def down(broker: str, _: data_pb2.PublishRequest) -> None:
        if broker == "b" and len(net.tries) < 4:
            raise errors.ConnectionFailed("down")

    net = Brokers(down)
    async with producer(net, max_attempts=10) as p:
        result = await p.send(note("x"), selector=lambda queues: queues[-1])
    assert result.queue == MessageQueue("t", "b", 1)
    assert {broker for broker, _ in net.tries} == {"b"}


async def test_with_latency_faults_the_first_retry_stays_at_the_broker() -> None:
    failed: list[tuple[str, int]] = []

    async def shaky(broker: str, request: data_pb2.PublishRequest) -> None:
        if len(failed) < 2:
            failed.append((broker, request.queue.queue_id))
            raise errors.ConnectionFailed("shaky")

    net = Brokers(shaky)
    async with producer(net, latency_faults=True) as p:
        result = await p.send(note("x"))
    (first, one), (second, two) = failed
    assert first == second != result.queue.broker_name
    assert one != two


async def test_with_latency_faults_most_messages_leave_a_broker_that_fails() -> None:
    async def down(broker: str, _: data_pb2.PublishRequest) -> None:
        if broker == "a":
            raise errors.ConnectionFailed("down")

    net = Brokers(down)
    async with producer(net, latency_faults=True, max_attempts=5) as p:
        for n in range(100):
            await p.send(note(str(n)))
    tries = [broker for broker, _ in net.tries]
    assert len(net.messages) == 100
    assert 5 < tries.count("a") < 40


async def test_nobody_hears_of_a_one_way_message_and_it_is_tried_once() -> None:
    async def full(_: str, __: data_pb2.PublishRequest) -> None:
        raise errors.TooManyRequests("full")

    net = Brokers(full)
    async with producer(net) as p:
        await p.send_oneway(note("x"))
        await p.flush()
        assert len(net.tries) == 1
        net.rule = None
        await p.send_oneway(note("y"))
    assert [m.body for m in net.messages] == [b"y"]


async def test_delayed_messages_do_not_take_the_others_off_the_fast_way() -> None:
    net = Brokers()
    async with producer(net) as p:
        delayed = await p.send(Message(topic="t", body=b"later", delay=1))
        assert delayed.queue.queue_id == -1
        assert (await p.send(note("now"))).queue.queue_id >= 0


async def test_large_bodies_are_packed_and_small_ones_are_not() -> None:
    net = Brokers()
    async with producer(net, compression="zlib", compress_from_bytes=1_000) as p:
        await p.send(note("x" * 999))
        await p.send(note("x" * 1_000))
    assert sorted(len(m.body) < 100 for m in net.messages) == [False, True]
    with pytest.raises(errors.BadRequest, match="snappy"):
        producer(net, compression="snappy")


async def test_messages_of_a_lite_topic_keep_their_order_through_a_failure_and_travel_by_v2() -> None:
    class Failing(Brokers):
        stumbles = 2

        def __init__(self) -> None:
            super().__init__()
            self.sent: list[tuple[str, str, str]] = []

        async def unary(self, address: str, method: str, request: bytes, **rest: Any) -> bytes:
            if method.endswith("/SendMessage"):
                if self.stumbles:
                    self.stumbles -= 1
                    raise errors.ConnectionFailed("down")
                for message in service_pb2.SendMessageRequest.FromString(request).messages:
                    self.sent.append((address, message.system_properties.lite_topic, message.body.decode()))
            return await super().unary(address, method, request, **rest)

    net = Failing()
    async with producer(net, linger_ms=0) as p:
        names = [f"n{number}" for number in range(8)]
        for body in range(4):
            for name in names:
                await p.send_async(note(str(body), lite_topic=name))
        await p.flush()
    assert not net.tries
    for name in names:
        mine = [(address, body) for address, reported, body in net.sent if reported == name]
        assert mine == [(f"{owner_among(['a', 'b'], 't', name)}:1", str(body)) for body in range(4)]


@pytest.fixture(autouse=True)
def no_hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with other work makes an iterable look slow, and then blocks are smaller."""
    monkeypatch.setattr("evenq.client.loops.sending.blocks.DRAWN_MS", 60_000)


async def warmed(net: Brokers, **options: Any) -> aio.Producer:
    """A producer that knows the route, and brokers that have nothing yet."""
    made = producer(net, **options)
    await made.send(note("first"))
    net.stored.clear()
    net.tries.clear()
    return made


async def test_a_batch_is_one_call_for_each_queue_and_its_results_are_in_order() -> None:
    net = Brokers()
    async with await warmed(net) as p:
        results = await p.send_batch(note(str(n)) for n in range(400))
    assert {len(kept) for kept in net.stored.values()} == {100}  # PR-6
    assert len(net.tries) == 4
    for number, result in enumerate(results):
        there = net.stored[result.queue.broker_name, result.queue.queue_id][result.offset]
        assert there.body == b"%d" % number
        assert there.system_properties.message_id == result.message_id


async def test_the_first_messages_of_a_batch_are_sent_while_the_last_ones_are_drawn() -> None:
    net = Brokers(queues={"a": 1})
    tried: list[int] = []

    def draw() -> Iterator[Message]:
        for number in range(1_000):
            tried.append(len(net.tries))
            yield note(str(number))

    async with await warmed(net, linger_ms=1_000) as p:
        await p.send_batch(draw())
    assert tried[:100] == [0] * 100
    assert 4 <= tried[-1] <= 8
    assert [int(m.body) for m in net.messages] == list(range(1_000))


async def test_a_block_that_fails_goes_to_another_broker_with_the_same_message_ids() -> None:
    async def down(broker: str, _: data_pb2.PublishRequest) -> None:
        if broker == "a":
            raise errors.ConnectionFailed("down")

    net = Brokers()
    async with await warmed(net) as p:
        net.rule = down
        results = await p.send_batch(note(str(n)) for n in range(80))
    assert {result.queue.broker_name for result in results} == {"b"}
    refused = [message_id for broker, ids in net.tries if broker == "a" for message_id in ids]
    assert len(refused) == 40
    assert set(refused) < {result.message_id for result in results}
    assert [m.system_properties.message_id for m in net.messages if m.body == b"3"] == [results[3].message_id]
    assert sorted(int(m.body) for m in net.messages) == list(range(80))


async def test_one_bad_message_of_a_block_fails_alone_and_is_told_after_all_were_answered() -> None:
    async def refuse(_: str, request: data_pb2.PublishRequest) -> None:
        if any(m.body == b"7" for m in request.messages):
            raise errors.IllegalMessageTag("bad tag")

    net = Brokers(refuse, queues={"a": 2})
    async with await warmed(net) as p:
        with pytest.raises(errors.IllegalMessageTag, match="bad tag"):
            await p.send_batch(note(str(n)) for n in range(64))
        assert p._gate.messages == p._gate._bytes == p._sending._pending == 0
    assert sorted(int(m.body) for m in net.messages) == [n for n in range(64) if n != 7]


async def test_a_block_for_a_queue_that_was_closed_moves_with_all_its_messages() -> None:
    async def closed(_: str, request: data_pb2.PublishRequest) -> None:
        if request.queue.queue_id == 1:
            raise errors.Forbidden("takes no messages any more")

    net = Brokers(queues={"a": 2})
    async with await warmed(net) as p:
        net.rule, net.queues = closed, {"a": 1}
        results = await p.send_batch(note(str(n)) for n in range(64))
    assert {result.queue.queue_id for result in results} == {0}
    assert sorted(int(m.body) for m in net.messages) == list(range(64))


async def test_a_block_stored_in_part_by_an_earlier_try_tells_each_message_its_own_place() -> None:
    class Repeated(Brokers):
        async def _publish(self, broker: str, request: data_pb2.PublishRequest) -> bytes:
            response = data_pb2.PublishResponse.FromString(await super()._publish(broker, request))
            if len(request.messages) > 1:
                response.offsets.extend(n * 10 for n in range(len(request.messages)))
                response.queue_ids.extend(n % 2 for n in range(len(request.messages)))
            return response.SerializeToString()

    net = Repeated(queues={"a": 1})
    async with await warmed(net, linger_ms=1_000) as p:
        alone = await p.send_async(note("x"))
        results = await p.send_batch(note(str(n)) for n in range(3))
        assert (await alone).offset == 0
    assert [(r.queue.queue_id, r.offset) for r in results] == [(1, 10), (0, 20), (1, 30)]


async def test_blocks_keep_behind_what_was_given_to_their_queue_before() -> None:
    net = Brokers(queues={"a": 1})
    async with await warmed(net, linger_ms=1_000) as p:
        for number in range(5):
            await p.send_async(note(str(number)))
        await p.send_batch([note(str(n), **{"message_group": "g"} if n == 50 else {}) for n in range(5, 100)])
    assert [int(m.body) for m in net.messages] == list(range(100))


async def test_a_block_that_takes_too_long_or_is_cut_off_by_close_settles_as_a_whole() -> None:
    came = asyncio.Event()

    async def hang(_: str, __: data_pb2.PublishRequest) -> None:
        came.set()
        await asyncio.Event().wait()

    net = Brokers()
    late = await warmed(net, send_timeout_ms=100)
    net.rule = hang
    with pytest.raises(errors.RequestTimeout, match=r"send_timeout_ms\), 0 tries failed"):
        await late.send_batch(note(str(n)) for n in range(80))
    assert late._gate.messages == late._sending._pending == 0
    await late.close()

    net = Brokers()
    cut = await warmed(net)
    net.rule = hang
    came.clear()
    batch = asyncio.ensure_future(cut.send_batch(note(str(n)) for n in range(80)))
    await came.wait()
    with pytest.raises(errors.RequestTimeout):
        await cut.close(timeout_ms=20)
    with pytest.raises(errors.ConnectionFailed, match="closed"):
        await batch
    assert cut._gate.messages == 0


async def test_a_batch_that_is_larger_than_what_may_be_pending_goes_through_piece_by_piece() -> None:
    most = 0

    async def look(_: str, __: data_pb2.PublishRequest) -> None:
        nonlocal most
        most = max(most, p._gate.messages)
        await asyncio.sleep(0)

    net = Brokers()
    async with await warmed(net, pending_messages=50) as p:
        net.rule = look
        assert len(await p.send_batch(note(str(n)) for n in range(500))) == 500
    assert 0 < most <= 50


async def test_a_cancelled_batch_leaves_nothing_pending() -> None:
    gate, came = asyncio.Event(), asyncio.Event()

    async def hold(_: str, __: data_pb2.PublishRequest) -> None:
        came.set()
        await gate.wait()

    net = Brokers()
    async with await warmed(net) as p:
        net.rule = hold
        batch = asyncio.ensure_future(p.send_batch(note(str(n)) for n in range(80)))
        await came.wait()
        batch.cancel()
        with pytest.raises(asyncio.CancelledError):
            await batch
        gate.set()
        await p.flush()
        assert p._gate.messages == 0


async def test_with_latency_faults_every_message_of_a_batch_asks_the_table() -> None:
    net = Brokers()
    async with await warmed(net, latency_faults=True) as p:
        assert p._sending.spread("t", 1) is None, "a block would not ask"
        assert len(await p.send_batch(note(str(n)) for n in range(100))) == 100
    async with await warmed(net) as p:
        assert p._sending.spread("t", 1) is not None


def test_producers_begin_at_different_queues_pr_2() -> None:
    """A thousand programs that send one message each must not all send it to the first queue."""

    async def first_queue(seed: int) -> int:
        net = Brokers(queues={"a": 8})
        context = ClientContext(clock=SystemClock(), rng=random.Random(seed), net=net)
        async with aio.Producer(endpoint="a:1", context=context) as one:
            return (await one.send(Message(topic="t", body=b"x"))).queue.queue_id

    begun = {asyncio.run(first_queue(seed)) for seed in range(24)}
    assert len(begun) >= 5, f"24 producers began at queues {sorted(begun)}"
