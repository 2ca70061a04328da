"""Makes correct histories out of a seed: a small model of a cluster, and clients that use it side by side.

Producers (plain, FIFO, delay, transaction), groups that acknowledge (POP) and groups that commit offsets and hand
queues over, lost answers, refused sends, invisible times that end, dead letters, killed brokers and members. The
checker must find nothing in any of them; `planting` spoils them one kind at a time. Same seed, same history.
"""

from __future__ import annotations

import random
from collections.abc import Generator
from typing import Any

from evenq.testing.history import Delivery, Event, Op

_Actor = Generator[None, None, None]
_INVISIBLE_MS = 400
_ATTEMPTS_MAX = 2
_TOPICS = {"plain": 4, "fifo": 2, "delay": 2, "tx": 2}


def good_history(seed: int, *, messages: int = 60) -> list[Event]:
    """A correct history with about `messages` sends a producer (7 producers)."""
    return _World(random.Random(seed), messages).run()  # a seed is the point


class _World:
    """The model: queues, leases, offsets, and the clock that each step moves on."""

    def __init__(self, rng: random.Random, messages: int) -> None:
        self.rng = rng
        self.messages = messages
        self.events: list[Event] = []
        self.now = 1_000
        self.queues: dict[str, list[tuple[str, str]]] = {}  # queue -> (body, message group) by offset
        for topic, count in _TOPICS.items():
            for number in range(count):
                self.queues[f"{topic}/broker-{'ab'[number % 2]}/{number}"] = []
        self.timers: list[tuple[int, str, str, str]] = []  # due ms, queue, body, message group
        self.producing = 0
        self.down = ""
        self._ids = 0

    def run(self) -> list[Event]:
        actors: list[_Actor] = [
            self._producer("p1", "plain"),
            self._producer("p2", "plain"),
            self._producer("p3", "fifo"),
        ]
        actors += [
            self._producer("p4", "fifo"),
            self._producer("p5", "delay"),
            self._producer("p6", "tx"),
            self._producer("p7", "plain"),
        ]
        pops = [_PopGroup(self, "pop-1", topic) for topic in _TOPICS] + [_PopGroup(self, "pop-2", "plain")]
        pulls = [_PullGroup(self, "pull-1", queue) for queue in self.queues if queue.startswith(("plain", "fifo"))]
        actors += [pop.consumer(f"{pop.name}-{pop.topic}-{number}") for pop in pops for number in range(2)]
        actors += [pull.consumers() for pull in pulls]
        actors.append(self._breaker())
        self.producing = 7
        while actors:
            self.now += self.rng.choice((0, 0, 1, 1, 2, 5))
            self._fire()
            actor = self.rng.choice(actors)
            try:
                next(actor)
            except StopIteration:
                actors.remove(actor)
        self._finish(pops)
        return self.events

    def invoke(self, op: Op, **fields: Any) -> int:
        self._ids += 1
        self.events.append(Event(kind="invoke", at_ms=self.now, id=self._ids, op=op.value, **fields))
        return self._ids

    def end(self, number: int, kind: str = "ok", **fields: Any) -> None:
        self.events.append(Event(kind=kind, at_ms=self.now, id=number, **fields))

    def done(self, op: Op, **fields: Any) -> None:
        self.end(self.invoke(op, **fields))

    def idle(self) -> bool:
        """Nothing will be appended any more."""
        return not self.producing and not self.timers

    def _fire(self) -> None:
        for timer in sorted(self.timers):
            if timer[0] <= self.now:
                self.timers.remove(timer)
                self.queues[timer[1]].append((timer[2], timer[3]))

    def _producer(self, name: str, topic: str) -> _Actor:
        rng = self.rng
        for number in range(self.messages):
            body = f"{name}-{number}"
            message_group = f"{name}-{rng.randrange(3)}" if topic == "fifo" else ""
            mine = [queue for queue in self.queues if queue.startswith(topic + "/")]
            queue = mine[sum(message_group.encode()) % len(mine)] if message_group else rng.choice(mine)
            delivery_ms = self.now + rng.randrange(20, 300) if topic == "delay" else 0
            fields = {
                "topic": topic,
                "body": body,
                "tag": rng.choice(("red", "blue")),
                "message_group": message_group,
                "delivery_ms": delivery_ms,
            }
            send = self.invoke(Op.SEND, process=name, half=topic == "tx", **fields)
            yield
            if self.down and f"/{self.down}/" in queue:
                self.end(send, rng.choice(("fail", "info")))
                continue
            fate = rng.random()
            if fate < 0.06:
                yield
                self.end(send, "fail" if fate < 0.04 else "info", error="refused")
                continue
            place: dict[str, Any] = {}
            if topic in ("plain", "fifo"):
                self.queues[queue].append((body, message_group))
                place = {"queue": queue, "offset": len(self.queues[queue]) - 1}
            elif topic == "delay":
                self.timers.append((delivery_ms, queue, body, message_group))
            yield
            self.end(send, **place) if fate > 0.1 else self.end(send, "info", error="timeout")
            if topic == "tx":
                yield
                yield from self._transaction(name, queue, body)
        self.producing -= 1

    def _transaction(self, name: str, queue: str, body: str) -> _Actor:
        action = self.rng.choice(("commit", "commit", "commit", "rollback", ""))
        if action:
            number = self.invoke(Op.ADMIN, process=name, action=action, body=body)
            yield
            if action == "commit":
                self.queues[queue].append((body, ""))
            yield
            self.end(number)

    def _breaker(self) -> _Actor:
        for _ in range(3):
            for _ in range(self.rng.randrange(5, 40)):
                yield
            target = self.rng.choice(("broker-a", "broker-b"))
            self.events.append(Event(kind="fault", at_ms=self.now, op="kill", target=target))
            self.down = target
            for _ in range(self.rng.randrange(3, 12)):
                yield
            self.down = ""
            self.events.append(Event(kind="heal", at_ms=self.now, op="kill", target=target))

    def _finish(self, pops: list[_PopGroup]) -> None:
        self.now += 5_000
        for pop in pops:
            self.done(Op.ADMIN, action="drain", group=pop.name, topic=pop.topic)
        for topic in ("plain", "fifo"):
            self.done(Op.ADMIN, action="drain", group="pull-1", topic=topic)
        for queue, stored in self.queues.items():
            found = [Delivery(queue, offset, body) for offset, (body, _) in enumerate(stored)]
            self.end(self.invoke(Op.ADMIN, action="scan", queue=queue), offset=0, messages=found)
        for name in sorted({pop.name for pop in pops}):
            dead = [
                Delivery(f"%DLQ%{name}/broker-a/0", at, body)
                for at, body in enumerate(b for pop in pops if pop.name == name for b in pop.dead)
            ]
            self.end(self.invoke(Op.ADMIN, action="dead_letters", group=name), messages=dead)


class _PopGroup:
    """One group that receives and acknowledges, on one topic."""

    def __init__(self, world: _World, name: str, topic: str) -> None:
        self.world, self.name, self.topic = world, name, topic
        self.dead: list[str] = []
        self._next: dict[str, int] = {queue: 0 for queue in world.queues if queue.startswith(topic + "/")}
        self._held: dict[tuple[str, int], list[int]] = {}  # place -> [visible again at ms, attempts]
        world.done(Op.ADMIN, action="subscribe", group=name, topic=topic)

    def consumer(self, client: str) -> _Actor:
        world, rng = self.world, self.world.rng
        while not (
            world.idle() and not self._held and all(at == len(world.queues[queue]) for queue, at in self._next.items())
        ):
            queue = rng.choice(list(self._next))
            fields = {"process": client, "group": self.name, "topic": self.topic, "invisible_ms": _INVISIBLE_MS}
            receive = world.invoke(Op.RECEIVE, **fields)
            yield
            if world.down and f"/{world.down}/" in queue:
                world.end(receive, "info")
                continue
            messages = self._take(queue)
            yield
            if rng.random() < 0.04:
                world.end(receive, "info", error="connection lost")
                continue
            world.end(receive, messages=messages)
            for message in messages:
                yield from self._handle(client, message)

    def _take(self, queue: str) -> list[Delivery]:
        """What the broker would hand out now: first what became visible again, then what is new."""
        world = self.world
        taken: list[Delivery] = []
        stored = world.queues[queue]
        for (held_queue, offset), state in sorted(self._held.items()):
            if (
                held_queue == queue
                and state[0] <= world.now
                and len(taken) < 3
                and not self._blocked(queue, offset, stored[offset][1])
            ):
                if state[1] == _ATTEMPTS_MAX:
                    self.dead.append(stored[offset][0])
                    del self._held[queue, offset]
                    continue
                state[0], state[1] = world.now + _INVISIBLE_MS, state[1] + 1
                taken.append(Delivery(queue, offset, stored[offset][0], state[1]))
        while len(taken) < 4 and self._next[queue] < len(stored):
            offset = self._next[queue]
            if self._blocked(queue, offset, stored[offset][1]):
                break
            self._next[queue] += 1
            self._held[queue, offset] = [world.now + _INVISIBLE_MS, 1]
            taken.append(Delivery(queue, offset, stored[offset][0], 1))
        return sorted(taken, key=lambda delivery: delivery.offset)

    def _blocked(self, queue: str, offset: int, message_group: str) -> bool:
        stored = self.world.queues[queue]
        return bool(message_group) and any(
            q == queue and at < offset and stored[at][1] == message_group for q, at in self._held
        )

    def _handle(self, client: str, message: Delivery) -> _Actor:
        world, rng = self.world, self.world.rng
        place = {
            "process": client,
            "group": self.name,
            "queue": message.queue,
            "offset": message.offset,
            "body": message.body,
        }
        fate = rng.random()
        if fate < 0.06:
            return  # forgotten: its invisible time ends
        yield
        if fate < 0.12:
            extend = world.invoke(Op.EXTEND, invisible_ms=0 if fate < 0.09 else 600, **place)
            yield
            held = self._held.get((message.queue, message.offset))
            if held is not None and held[1] == message.attempt:
                held[0] = world.now if fate < 0.09 else world.now + 600
                world.end(extend)
            else:
                world.end(extend, "fail")
            if fate < 0.09:
                return
            yield
        ack = world.invoke(Op.ACK, **place)
        yield
        held = self._held.get((message.queue, message.offset))
        if held is None or held[1] != message.attempt:
            world.end(ack, "fail", error="stale receipt")
            return
        del self._held[message.queue, message.offset]
        yield
        world.end(ack, "info" if fate > 0.97 else "ok")


class _PullGroup:
    """One queue of a group that keeps offsets; two members hold it in turn, and sometimes the holder is killed."""

    def __init__(self, world: _World, name: str, queue: str) -> None:
        self.world, self.name, self.queue = world, name, queue
        self._committed = -1
        world.done(Op.ADMIN, action="subscribe", group=name, topic=queue.split("/", maxsplit=1)[0])

    def consumers(self) -> _Actor:
        world, rng = self.world, self.world.rng
        turn = 0
        while not (world.idle() and self._committed == len(world.queues[self.queue])) and (
            self._committed >= 0 or not world.idle() or turn < 1
        ):
            turn += 1
            client = f"{self.name}-{turn % 2}"
            at = {"process": client, "group": self.name, "queue": self.queue}
            lock = world.invoke(Op.ADMIN, action="lock", **at)
            yield
            world.end(lock)
            fetch = world.invoke(Op.OFFSET, action="fetch", **at)
            yield
            world.end(fetch, offset=self._committed)
            yield from self._hold(client, at)
            unlock = world.invoke(Op.ADMIN, action="unlock", **at)
            yield
            world.end(unlock)
            if rng.random() < 0.2:
                yield

    def _hold(self, client: str, at: dict[str, str]) -> _Actor:
        world, rng = self.world, self.world.rng
        position = max(self._committed, 0)
        for _ in range(rng.randrange(2, 8)):
            receive = world.invoke(Op.RECEIVE, topic=self.queue.split("/", maxsplit=1)[0], **at)
            yield
            stored = world.queues[self.queue][position : position + 8]
            messages = [Delivery(self.queue, position + index, body) for index, (body, _) in enumerate(stored)]
            yield
            if rng.random() < 0.04:
                world.end(receive, "info")
                continue
            world.end(receive, messages=messages)
            if messages and rng.random() < 0.04:
                world.events.append(Event(kind="fault", at_ms=world.now, op="kill member", target=client))
                yield
                world.events.append(Event(kind="heal", at_ms=world.now, op="kill member", target=client))
                return
            position += len(messages)
            commit = world.invoke(Op.OFFSET, action="commit", offset=position, **at)
            yield
            self._committed = max(self._committed, position)
            world.end(commit)
