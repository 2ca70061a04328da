"""Senders, receivers and pullers at every broker of a group at once, no matter which copy leads: only a leader may answer them.

Each try is one call at one broker and one operation of the history, without retries, so the checker sees every answer.
Besides, each acknowledgement is kept with its broker: who was deposed must not answer what was asked after its
successor's first answer.
"""

from __future__ import annotations

import asyncio
import random
import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from evenq.errors import Error, InternalError
from evenq.runtime.clock import SystemClock
from evenq.testing.history import Recorder
from evenq_proofs.kill_loop.clients import Clients

PAUSE_MS: Final = 60
"""After a call that failed: most brokers do not serve."""
PACE_MS: Final = 10
"""Between two calls of one story: the group is to be broken, not its machine."""

RECEIVE_WAITS_MS = (20, 200, 1_500)
"""Who has time takes messages before they are committed. A short wait is often over before that is done."""


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """One answer with OK."""

    broker: int
    asked_ms: int
    answered_ms: int


@dataclass(slots=True)
class GroupAnswers:
    """Of all brokers; belongs to the clients' thread."""

    acknowledged: list[Acknowledged] = field(default_factory=list)
    failed: Counter[str] = field(default_factory=Counter)


class ClientsAtBroker(Clients):
    """The stories of the kill loop at one broker, begun again after each error."""

    def __init__(
        self, broker: int, address: str, recorder: Recorder, rng: random.Random, answers: GroupAnswers, **edges: Any
    ) -> None:
        """`edges`: net and clock, see Clients."""
        super().__init__(address, recorder, rng, name=f"b{broker}", **edges)
        self._broker, self._answers = broker, answers

    async def _quietly(self, story: Any) -> None:
        while not self._stopping:
            try:
                await story()
                await self._clock.sleep_ms(PACE_MS)
            except Error as error:
                self._answers.failed[type(error).__name__] += 1
                await self._failed()

    async def _failed(self) -> None:
        renew = getattr(self._net, "renew", None)  # nets of simulations have no connections
        if renew is not None:
            await renew(self._address)  # the next try has a connection of its own
        await self._clock.sleep_ms(PAUSE_MS)

    def _stories(self) -> list[Any]:
        return [self._send_v2, self._send_v2, self._publish, self._receive, self._receive]

    async def _receive(self) -> None:
        await self._receive_once(wait_ms=self._rng.choice(RECEIVE_WAITS_MS))

    def _promised(self, asked_ms: int) -> None:
        now_ms = self._clock.monotonic_ms()
        self._answers.acknowledged.append(Acknowledged(self._broker, asked_ms, now_ms))


class GroupPuller(ClientsAtBroker):
    """The one member of the group that keeps offsets: at one broker until that fails, then at the next, where it begins
    at the offset that this one tells.
    """

    def __init__(
        self, addresses: Sequence[str], recorder: Recorder, rng: random.Random, answers: GroupAnswers, **edges: Any
    ) -> None:
        super().__init__(0, addresses[0], recorder, rng, answers, **edges)
        self._addresses = addresses

    def _stories(self) -> list[Any]:
        return [self._pull]

    async def _failed(self) -> None:
        await super()._failed()
        self.go_on()

    def go_on(self) -> None:
        """At the next broker, where its progress is asked for."""
        self._broker = (self._broker + 1) % len(self._addresses)
        self._address, self._offsets, self._refusal = self._addresses[self._broker], [], ""

    async def _pull(self) -> None:
        await super()._pull()
        if self._refusal:
            raise InternalError(self._refusal)


class GroupClients:
    """Runs them on a thread until `stop`."""

    def __init__(self, addresses: Sequence[str], recorder: Recorder, rng: random.Random) -> None:
        self.answers = GroupAnswers()
        self._addresses, self._recorder, self._rng = addresses, recorder, rng
        self._stopping = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="clients", daemon=True)
        self._thread.start()

    @property
    def acknowledged(self) -> int:
        """Answers with OK so far, of sends and acks."""
        return len(self.answers.acknowledged)

    def stop(self) -> None:
        """Each story ends with what it is at. Raises what went wrong in the clients themselves."""
        self._stopping.set()
        self._thread.join(60)
        assert not self._thread.is_alive(), "the clients did not end within 60 s"
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        try:
            asyncio.run(self._work())
        except BaseException as error:  # noqa: BLE001 - `stop` raises it
            self._error = error

    async def _work(self) -> None:
        clients = [
            ClientsAtBroker(broker, address, self._recorder, self._rng, self.answers)
            for broker, address in enumerate(self._addresses)
        ]
        clients.append(GroupPuller(self._addresses, self._recorder, self._rng, self.answers))
        tasks = [client.start() for client in clients]
        clock = SystemClock()
        while not self._stopping.is_set():
            await clock.sleep_ms(50)
            for task in (task for of_one in tasks for task in of_one if task.done()):
                task.result()  # a story ends by a fault of its own only
        await asyncio.gather(*(client.stop(of_one) for client, of_one in zip(clients, tasks, strict=True)))
        for client in clients:
            await client.close()


def acks_of_deposed(acknowledged: Sequence[Acknowledged], elections: Sequence[tuple[int, int, int]]) -> list[str]:
    """Answers of a broker that were asked for after another one's first answer as leader of a later epoch, and before
    the broker was elected again. `elections`: epoch, leader, when it was written.
    """
    found: list[str] = []
    if not elections:
        return [f"{len(acknowledged)} answers and no election was written"] if acknowledged else []
    epochs = [epoch for epoch, _, _ in elections]
    begun = {epoch: (leader, seen_ms) for epoch, leader, seen_ms in elections}
    first_ms: dict[int, int] = {}
    """Of each epoch; an answer belongs to the newest epoch of its broker that was written before it."""
    for answer in sorted(acknowledged, key=lambda one: one.answered_ms):
        own = [e for e in epochs if begun[e][0] == answer.broker and begun[e][1] <= answer.answered_ms]
        if not own:
            found.append(f"broker {answer.broker} answered at {answer.answered_ms} and had never been elected")
            continue
        epoch = own[-1]
        first_ms.setdefault(epoch, answer.answered_ms)
        later = [e for e in epochs if e > epoch and e in first_ms and begun[e][0] != answer.broker]
        for e in later:
            if answer.asked_ms > first_ms[e]:
                found.append(
                    f"broker {answer.broker}, leader of epoch {epoch}, answered at {answer.answered_ms} what was asked "
                    f"at {answer.asked_ms}; broker {begun[e][0]} of epoch {e} had answered at {first_ms[e]}"
                )
                break
    return found
