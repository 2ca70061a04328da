"""Which deliveries a client's life holds: all that it holds, little more, and nothing after its end."""

from __future__ import annotations

import random

from evenq_broker.core.delivery.held import Held
from evenq_broker.core.delivery.progress import Progress, SettleStatus
from evenq_broker.core.delivery.queue_progress import Pending, QueueProgress


def queue_of(number: int, offsets: range, client: str = "a") -> QueueProgress:
    queue = QueueProgress(1, 1, number, 0)
    queue.pending.update({offset: Pending(1, 1, 9_000, client) for offset in offsets})
    return queue


def test_a_client_finds_what_it_got_by_queue_and_is_forgotten() -> None:
    first, second = queue_of(0, range(4)), queue_of(1, range(2))
    held = Held({(1, 1, 0): first, (1, 1, 1): second})
    held.add("a", second, [0, 1])
    held.add("a", first, [0, 1])
    held.add("b", first, [2])
    held.add("a", first, [3])
    assert held.clients() == ["a", "b"]
    assert held.pop("a") == [((1, 1, 0), [0, 1, 3]), ((1, 1, 1), [0, 1])]
    assert held.pop("a") == []
    assert len(held) == 1


def test_what_is_finished_or_given_to_others_is_not_kept_for_long() -> None:
    queue = queue_of(0, range(0))
    held = Held({(1, 1, 0): queue})
    for offset in range(10_000):
        queue.pending[offset] = Pending(1, 1, 9_000, "a")
        held.add("a", queue, [offset])
        if offset >= 100:
            del queue.pending[offset - 100]
    [(_, kept)] = held.pop("a")
    assert set(queue.pending) <= set(kept)
    assert len(kept) <= 2 * 100 + 33


def test_one_message_given_again_and_again_is_kept_once_or_a_few_times() -> None:
    queue = queue_of(0, range(1))
    held = Held({(1, 1, 0): queue})
    for _ in range(1_000):
        held.add("a", queue, [0])
    [(_, kept)] = held.pop("a")
    assert set(kept) == {0}
    assert len(kept) <= 40


def test_queues_without_anything_held_are_forgotten_while_the_client_lives() -> None:
    queues = {(1, 1, number): queue_of(number, range(1)) for number in range(1_000)}
    held = Held(queues)
    for key, queue in list(queues.items()):
        held.add("a", queue, [0])
        if key[2] % 2:
            queue.pending.clear()
        else:
            del queues[key]
    assert len(held.pop("a")) <= 2 * 16 + 1


def test_the_end_of_each_client_releases_what_a_look_at_everything_would_find() -> None:
    rng = random.Random(4)
    progress = Progress()
    clients = [f"client{number}" for number in range(12)]
    now_ms = 1_000
    for queue_id in range(3):
        progress.start(1, 1, queue_id, 0)
    for _ in range(2_000):
        queue = progress.queue(1, 1, rng.randrange(3))
        assert queue is not None
        client = rng.choice([*clients, ""])
        now_ms += rng.randrange(3)
        match rng.randrange(6):
            case 0 | 1:
                offsets = list(range(queue.next, queue.next + rng.randrange(1, 9)))
                progress.deliver(queue, offsets, offsets[-1] + 1, deadline_ms=now_ms + 200, client_id=client)
            case 2:
                progress.expire(now_ms)
                progress.take_ready(queue, 5, deadline_ms=now_ms + 200, client_id=client, max_attempts=5)
            case 3 | 4:
                for offset in rng.sample(sorted(queue.pending), min(5, len(queue.pending))):
                    number = queue.pending[offset].number
                    verdict = progress.ack(queue, offset, number, expires_ms=now_ms + 1, now_ms=now_ms)
                    assert verdict in {SettleStatus.DONE, SettleStatus.INVALID}
            case _:
                expected = {
                    (one.queue_id, offset)
                    for one in progress.queues()
                    for offset, entry in one.pending.items()
                    if client and entry.client_id == client and entry.deadline_ms > now_ms + 1
                }
                released = progress.release(client, now_ms + 1)
                assert sorted((one.queue_id, offset) for one, offset in released) == sorted(expected)
                assert client not in progress.clients()
        progress.check()
