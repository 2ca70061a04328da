"""The SDK against real processes: shared queues, clean hand-overs, a broker that dies and comes back, both faces."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest
from evenq_proofs.waiting import until

import evenq
import evenq.aio
from evenq.errors import TopicNotFound
from evenq.testing.local_cluster import LocalCluster


class Seen:
    """What a group's listeners got, by (queue, offset)."""

    def __init__(self) -> None:
        self.counts: Counter[tuple[str, int]] = Counter()
        self.bodies: Counter[bytes] = Counter()
        self.lock = threading.Lock()

    def listen(self, messages: Sequence[evenq.ReceivedMessage]) -> None:
        with self.lock:
            for message in messages:
                self.counts[str(message.queue), message.queue_offset] += 1
                self.bodies[message.body] += 1

    @property
    def repeats(self) -> int:
        return sum(self.counts.values()) - len(self.counts)


pytestmark = pytest.mark.cluster(brokers=2)


def publish(producer: evenq.Producer, topic: str, numbers: range) -> None:
    for number in numbers:
        producer.send_async(evenq.Message(topic=topic, body=b"%d" % number))
    producer.flush(30_000)


@pytest.mark.parametrize("assignment", ["client", "server"])
@pytest.mark.slow
def test_a_fourth_member_joins_and_one_leaves_and_each_message_is_consumed_once(
    cluster: LocalCluster, assignment: str
) -> None:
    topic, group = f"once-{assignment}", f"once-{assignment}"
    with evenq.Admin(endpoint=cluster.endpoint) as admin:
        admin.create_topic(topic, queues=4)
        admin.create_group(group, strategy="AVG" if assignment == "server" else "")
    seen = Seen()

    def member() -> evenq.PushConsumer:
        return evenq.PushConsumer(
            group=group,
            endpoint=cluster.endpoint,
            listener=seen.listen,
            subscriptions={topic: "*"},
            start_from="FIRST",
            assignment=assignment,
        ).start()

    with evenq.Producer(endpoint=cluster.endpoint) as producer:
        members = [member() for _ in range(3)]
        until(lambda: sorted(len(m.queues) for m in members) == [2, 3, 3], what="3 members share 8 queues")
        publish(producer, topic, range(2_000))
        sending = threading.Thread(target=publish, args=(producer, topic, range(2_000, 12_000)))
        sending.start()
        members.append(member())
        until(lambda: [len(m.queues) for m in members] == [2, 2, 2, 2], what="4 members share 8 queues")
        members[0].close()
        until(lambda: sum(len(m.queues) for m in members[1:]) == 8, what="3 members have all queues")
        sending.join()
    until(lambda: len(seen.counts) == 12_000, what="all 12,000 are consumed")
    for consumer in members[1:]:
        consumer.close()
    assert seen.repeats == 0
    assert len(seen.bodies) == 12_000
    with evenq.Admin(endpoint=cluster.endpoint) as admin:
        assert admin.describe_group(group).summary.lag == 0


@pytest.mark.parametrize("ordered", [pytest.param(False, marks=pytest.mark.slow), True])
@pytest.mark.slow
def test_consumers_and_producer_go_on_by_themselves_after_kill_9_of_a_broker(tmp_path: Path, *, ordered: bool) -> None:
    """OC-12: in order too, repeats aside."""
    with LocalCluster(
        brokers=1, rebalancer=False, folder=tmp_path, broker_settings={"STORE__FLUSH": "sync"}
    ) as cluster:
        seen = Seen()
        with evenq.Admin(endpoint=cluster.endpoint) as admin:
            admin.create_topic("killed", queues=4)
        members = [
            evenq.PushConsumer(
                group="killed",
                endpoint=cluster.endpoint,
                listener=seen.listen,
                subscriptions={"killed": "*"},
                start_from="FIRST",
                ordered=ordered,
            ).start()
            for _ in range(2)
        ]
        options = evenq.ProducerOptions(max_attempts=60, retry_max_ms=500)
        with evenq.Producer(endpoint=cluster.endpoint, options=options) as producer:
            publish(producer, "killed", range(1_000))
            until(lambda: len(seen.bodies) == 1_000, what="the first 1,000 arrive")
            sending = threading.Thread(target=publish, args=(producer, "killed", range(1_000, 6_000)))
            sending.start()
            cluster.brokers[0].kill()
            cluster.brokers[0].restart()
            sending.join()
            publish(producer, "killed", range(6_000, 7_000))
        until(lambda: len(seen.bodies) == 7_000, what="all 7,000 arrive")
        until(lambda: sorted(len(m.queues) for m in members) == [2, 2], what="both members share again")
        for member in members:
            member.close()
    if ordered:
        for queue in {queue for queue, _ in seen.counts}:  # a Counter keeps the order of first sight
            firsts = [offset for known, offset in seen.counts if known == queue]
            assert firsts == sorted(firsts)


@pytest.mark.parametrize("assignment", ["client", "server"])
@pytest.mark.slow
def test_clients_whose_only_access_point_is_gone_for_good_learn_of_a_new_broker_and_forget_the_old_one(
    assignment: str,
) -> None:
    topic, seen = "moved", Seen()
    fast = {"HEARTBEAT_INTERVAL_MS": "200", "EXPIRY_MS": "1000"}
    with LocalCluster(brokers=2, nameserver_settings=fast) as running:
        first, second = running.brokers
        with evenq.Admin(endpoint=first.address) as admin:
            admin.create_topic(topic, queues=1)
        with (
            evenq.Producer(endpoint=first.address, options=evenq.ProducerOptions(route_refresh_ms=200)) as producer,
            evenq.PushConsumer(
                group="movers", endpoint=first.address, listener=seen.listen, subscriptions={topic: "*"},
                start_from="FIRST", assignment=assignment, options=evenq.PushOptions(route_refresh_ms=200),
            ) as consumer,
        ):  # fmt: skip
            producer.send(evenq.Message(topic=topic, body=b"0"))  # now it has a route
            until(lambda: len(consumer.queues) == 2, what="the group reads both brokers")
            first.kill()
            third = running._broker("c", 0, {})
            running.brokers.append(third)
            third.start()
            third.wait_ready()
            with evenq.Admin(endpoint=third.address) as admin:
                admin.create_topic(topic, queues=1)

            def names() -> list[str]:
                return sorted(queue.broker_name for queue in consumer.queues)

            until(lambda: names() == ["broker-b", "broker-c"], what="the consumer reads the new broker")
            sent = 0

            def on_new_broker() -> bool:
                nonlocal sent
                sent += 1
                return producer.send(evenq.Message(topic=topic, body=b"%d" % sent)).queue.broker_name == "broker-c"

            until(on_new_broker, what="the producer sends to the new broker")
            second.kill()
            for _ in range(4):
                sent += 1
                result = producer.send(evenq.Message(topic=topic, body=b"%d" % sent))
                assert result.queue.broker_name == "broker-c", "only the broker that it learned of is left"
            on_c = {b"%d" % number for number in range(sent - 3, sent + 1)}
            until(lambda: on_c <= seen.bodies.keys(), what="what the new broker has is consumed")


@pytest.mark.slow
def test_a_message_given_back_comes_again_after_kill_9_of_its_broker(tmp_path: Path) -> None:
    """RD-8, RD-18: its delay is stored like any delayed message's."""
    with LocalCluster(
        brokers=1, rebalancer=False, folder=tmp_path, broker_settings={"STORE__FLUSH": "sync"}
    ) as cluster:
        attempts: list[int] = []

        def listen(messages: Sequence[evenq.ReceivedMessage]) -> object:
            attempts.extend(message.delivery_attempt for message in messages)
            return evenq.Retry(delay_level=2) if messages[0].delivery_attempt == 1 else None

        consumer = evenq.PushConsumer(
            group="kept",
            endpoint=cluster.endpoint,
            listener=listen,
            subscriptions={"kept": "*"},
            start_from="FIRST",
            options=evenq.PushOptions(commit_interval_ms=100),
        )
        with evenq.Producer(endpoint=cluster.endpoint) as producer, evenq.Admin(endpoint=cluster.endpoint) as admin:
            producer.send(evenq.Message(topic="kept", body=b"x"))
            admin.create_group("kept")
            with consumer:
                until(lambda: 1 in {queue.committed for queue in admin.describe_group("kept").queues})
                cluster.brokers[0].kill()
                cluster.brokers[0].restart()
                until(lambda: len(attempts) == 2, what="the second delivery")
        assert attempts == [1, 2]


@pytest.mark.parametrize("assignment", ["client", "server"])
def test_a_failing_listener_gets_its_message_again_and_then_it_goes_to_the_dead_letters(
    cluster: LocalCluster, assignment: str
) -> None:
    name = f"failing-{assignment}"
    attempts: Counter[bytes] = Counter()
    events: list[tuple[str, int]] = []

    def listen(messages: Sequence[evenq.ReceivedMessage]) -> object:
        """RD-2, RD-3: through the retry topic, with its own topic and the number of its delivery."""
        for message in messages:
            attempts[message.body] += 1
            if message.body == b"bad":
                events.append((message.topic, message.delivery_attempt))
                return evenq.Retry([message], delay_level=1)
        return None

    with (
        evenq.Producer(endpoint=cluster.endpoint) as producer,
        evenq.PushConsumer(
            group=name,
            endpoint=cluster.endpoint,
            listener=listen,
            subscriptions={name: "*"},
            assignment=assignment,
            start_from="FIRST",
            options=evenq.PushOptions(max_attempts=3, consume_batch=1),
        ),
    ):
        producer.send(evenq.Message(topic=name, body=b"bad"))
        producer.send(evenq.Message(topic=name, body=b"good"))
        until(lambda: attempts[b"bad"] == 3 and attempts[b"good"] == 1, what="3 tries of the bad message")
        assert events == [(name, 1), (name, 2), (name, 3)]
        with evenq.Admin(endpoint=cluster.endpoint) as admin:
            admin.create_group(f"undertaker-{name}", start_from="FIRST")
            until(lambda: f"%DLQ%{name}" in {t.topic for t in admin.list_topics(include_system=True)})
        with evenq.SimpleConsumer(
            group=f"undertaker-{name}", endpoint=cluster.endpoint, subscriptions={f"%DLQ%{name}": "*"}
        ) as dead:

            def letters() -> list[evenq.ReceivedMessage]:
                try:
                    return dead.receive(wait_ms=10_000)
                except TopicNotFound:  # the broker at the endpoint learns of the topic with the next routes
                    return []

            (message,) = until(letters)
            assert message.body == b"bad"


def test_an_ordered_group_handles_each_queue_in_order_through_failures_joins_and_leaves(cluster: LocalCluster) -> None:
    """OC-8, OC-11, OC-15: two brokers, three members, a listener that fails now and then."""
    handled: dict[str, list[int]] = {}
    busy: set[str] = set()
    failed: set[bytes] = set()
    lock = threading.Lock()

    def listen(messages: Sequence[evenq.ReceivedMessage]) -> object:
        queue = str(messages[0].queue)
        with lock:
            assert queue not in busy, "two listeners in one queue"
            busy.add(queue)
        try:
            for message in messages:
                number = int(message.body)
                if number % 40 == 7 and message.body not in failed:
                    failed.add(message.body)
                    return evenq.Retry([later for later in messages if later.queue_offset >= message.queue_offset])
                handled.setdefault(queue, []).append(message.queue_offset)
            return None
        finally:
            with lock:
                busy.discard(queue)

    def member() -> evenq.PushConsumer:
        return evenq.PushConsumer(
            group="ordered",
            endpoint=cluster.endpoint,
            listener=listen,
            subscriptions={"ordered": "*"},
            start_from="FIRST",
            ordered=True,
            options=evenq.PushOptions(suspend_ms=20),
        ).start()

    with evenq.Producer(endpoint=cluster.endpoint) as producer:
        members = [member()]
        publish(producer, "ordered", range(300))
        until(lambda: sum(map(len, handled.values())) > 50, what="some are handled")
        members += [member(), member()]
        publish(producer, "ordered", range(300, 600))
        until(lambda: all(m.queues for m in members), what="all three members share")
        members.pop(0).close()
        until(lambda: sum(map(len, handled.values())) >= 600, what="all are handled")
        for consumer in members:
            consumer.close()
    assert sum(map(len, handled.values())) == 600
    for offsets in handled.values():
        assert offsets == list(range(len(offsets)))
    assert len(failed) == 15


def test_a_pull_consumer_polls_commits_seeks_and_goes_on_where_it_ended(cluster: LocalCluster) -> None:
    def consumer(**rest: object) -> evenq.PullConsumer:
        return evenq.PullConsumer(group="puller", endpoint=cluster.endpoint, start_from="FIRST", **rest)  # type: ignore[arg-type]  # as named below

    with evenq.Producer(endpoint=cluster.endpoint) as producer, evenq.Admin(endpoint=cluster.endpoint) as admin:
        admin.create_topic("pulled", queues=2)
        publish(producer, "pulled", range(100))
        seen: set[bytes] = set()
        with consumer(subscriptions={"pulled": "*"}) as one:
            while len(seen) < 80 or len(one.queues) < 4:  # 80: not without all four queues
                seen.update(message.body for message in one.poll(20, wait_ms=10_000))
        with consumer(subscriptions={"pulled": "*"}) as two:
            rest: Counter[bytes] = Counter()
            while messages := two.poll(50, wait_ms=1_000 if len(rest) + len(seen) >= 100 else 10_000):
                rest.update(message.body for message in messages)
            assert not seen & set(rest), "a clean end repeats nothing"
            assert len(seen) + len(rest) == 100
        with consumer() as free:
            queues = free.queues_of("pulled")
            free.assign(queues)
            assert [free.committed(queue) for queue in queues] == [25] * 4
            free.seek(queues[0], 20)
            assert [message.queue_offset for message in free.poll(wait_ms=10_000)] == [20, 21, 22, 23, 24]
            free.seek_to_begin(queues[1])
            assert len(free.poll(100, wait_ms=10_000)) == 25
            free.seek_to_end(queues[1])
            free.pause(queues[:1])
            assert free.poll(wait_ms=200) == []
            free.commit({queues[2]: 10})
            assert free.committed(queues[2]) == 10
    with pytest.raises(evenq.errors.Unsupported):
        free.poll()


def test_the_asyncio_pull_consumer_does_the_same(cluster: LocalCluster) -> None:
    async def story() -> list[bytes]:
        async with evenq.aio.Producer(endpoint=cluster.endpoint) as producer:
            await producer.send_batch(evenq.Message(topic="aio-pulled", body=b"%d" % n) for n in range(50))
        bodies: list[bytes] = []
        async with evenq.aio.PullConsumer(
            group="aio-puller", endpoint=cluster.endpoint, subscriptions={"aio-pulled": "*"}, start_from="FIRST"
        ) as consumer:
            while len(bodies) < 50:
                bodies += [message.body for message in await consumer.poll(wait_ms=10_000)]
        return bodies

    assert sorted(int(body) for body in asyncio.run(story())) == list(range(50))


def test_broadcasting_gives_every_member_every_message_and_goes_on_from_its_file(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    def member(name: str, seen: Seen) -> evenq.PushConsumer:
        return evenq.PushConsumer(
            group="everybody",
            endpoint=cluster.endpoint,
            listener=seen.listen,
            subscriptions={"news": "*"},
            model="BROADCASTING",
            start_from="FIRST",
            options=evenq.PushOptions(offsets_folder=tmp_path / name),
        ).start()

    first, second = Seen(), Seen()
    with evenq.Producer(endpoint=cluster.endpoint) as producer:
        publish(producer, "news", range(200))
        members = [member("a", first), member("b", second)]
        until(lambda: len(first.bodies) == len(second.bodies) == 200, what="both members have all 200")
        for consumer in members:
            consumer.close()
        again = Seen()
        publish(producer, "news", range(200, 250))
        with member("a", again):
            until(lambda: len(again.bodies) == 50, what="only the 50 new ones")
        assert not set(again.bodies) & set(first.bodies)


def test_the_asyncio_face_sends_batches_and_consumes(cluster: LocalCluster) -> None:
    async def story() -> int:
        done = asyncio.Event()
        bodies: set[bytes] = set()

        async def listen(messages: Sequence[evenq.ReceivedMessage]) -> None:
            bodies.update(message.body for message in messages)
            if len(bodies) == 500:
                done.set()

        async with (
            evenq.aio.Producer(endpoint=cluster.endpoint) as producer,
            evenq.aio.PushConsumer(
                group="aio",
                endpoint=cluster.endpoint,
                listener=listen,
                subscriptions={"aio": "red || blue"},
                start_from="FIRST",
            ),
        ):
            results = await producer.send_batch(
                evenq.Message(topic="aio", body=b"%d" % n, tag="red" if n % 2 else "green") for n in range(1_000)
            )
            assert len({(r.queue, r.offset) for r in results}) == 1_000
            async with asyncio.timeout(60):
                await done.wait()
        return len(bodies)

    assert asyncio.run(story()) == 500


def test_a_simple_consumer_receives_hides_and_acknowledges(cluster: LocalCluster) -> None:
    with (
        evenq.Producer(endpoint=cluster.endpoint) as producer,
        evenq.Admin(endpoint=cluster.endpoint) as admin,
    ):
        admin.create_topic("simple")
        admin.create_group("simple", start_from="FIRST")
        sent = producer.send(evenq.Message(topic="simple", body=b"hello", tag="t", keys=("k",), properties={"p": "1"}))
        with evenq.SimpleConsumer(group="simple", endpoint=cluster.endpoint, subscriptions={"simple": "*"}) as consumer:
            (message,) = consumer.receive(wait_ms=10_000)
            assert (message.message_id, message.tag, message.keys) == (sent.message_id, "t", ("k",))
            consumer.change_invisible(message, 0)
            (again,) = consumer.receive(wait_ms=10_000)
            assert again.delivery_attempt == 2
            consumer.ack(again)
            assert consumer.receive(wait_ms=300) == []


def test_unknown_things_have_clear_errors(cluster: LocalCluster) -> None:
    with evenq.Producer(endpoint=cluster.endpoint) as producer:
        with pytest.raises(evenq.errors.IllegalTopic):
            producer.send(evenq.Message(topic="no/slash", body=b"x"))
        with pytest.raises(evenq.errors.BodyEmpty):
            producer.send(evenq.Message(topic="aio", body=b""))
        with pytest.raises(evenq.errors.IllegalMessageTag):
            producer.send(evenq.Message(topic="aio", body=b"x", tag="a|b"))
        good = producer.send_async(evenq.Message(topic="one-queue-mates", body=b"good"))
        bad = producer.send_async(evenq.Message(topic="one-queue-mates", body=b"bad", tag="a|b"))
        assert good.result().offset >= 0
        assert isinstance(bad.exception(), evenq.errors.IllegalMessageTag)
    with evenq.Producer(endpoint="127.0.0.1:1") as producer, pytest.raises(evenq.errors.ConnectionFailed):
        producer.send(evenq.Message(topic="aio", body=b"x"))
