"""A model of a streaming query that writes with Spark's exactly-once sink: stages the rows of a batch, then decides it.

Its checkpoint is a number, the next batch. An operator may put an older one back: then the query writes batches anew
that it had written, with other rows, as Spark does whose source has moved on. A batch counts as written when its
decision is acknowledged. A refusal ends the query, and its operator begins another one with a checkpoint of its own.
"""

from __future__ import annotations

import random
from collections.abc import Callable

from evenq_proofs.sim import ProcessClock, ProcessNet

from evenq.errors import Error
from evenq.wire.status import check
from evenq.wire.stubs.evenq.v1 import staging_pb2

SERVICE = "/evenq.v1.Staging/"
CALL_MS = 3_000
PAUSE_MS = 300


class StagedQuery:
    """One query after the other, until it is cancelled."""

    def __init__(
        self,
        net: ProcessNet,
        clock: ProcessClock,
        rng: random.Random,
        *,
        topic: str,
        brokers: Callable[[], list[str]],
        fresh: Callable[[], int],
        written: Callable[[int, str], None],
        refused: Callable[[str], None],
    ) -> None:
        """`fresh` gives the number of one more row, `written` is called with each row of a written batch and its
        broker.
        """
        self._net, self._clock, self._rng, self._topic = net, clock, rng, topic
        self._brokers, self._fresh, self._written, self._refused = brokers, fresh, written, refused
        self._query = 1
        self._batch = 0
        self._rows: list[int] = []
        """Of the batch before."""
        self._again: list[int] = []
        self._back = 0

    def put_back(self, batches: int) -> None:
        """An older checkpoint takes the place of the present one; by one batch: perhaps with the same rows."""
        self._back = batches

    async def run(self) -> None:
        """Batch after batch."""
        while True:
            await self._clock.sleep_ms(self._rng.randint(50, 400))
            if self._back and self._batch:
                self._again = self._rows if self._back == 1 and self._rng.random() < 0.5 else []
                self._batch, self._back = max(0, self._batch - self._back), 0
            rows = self._again or [self._fresh() for _ in range(self._rng.randint(1, 6))]
            self._again = []
            while not await self._write(rows):
                await self._clock.sleep_ms(PAUSE_MS)
            self._rows, self._batch = rows, self._batch + 1

    async def _write(self, rows: list[int]) -> bool:
        brokers = self._brokers()
        if not brokers:
            return False
        token = self._rng.randbytes(16)
        places = {row: self._rng.choice(brokers) for row in rows}
        try:
            coordinator = await self._coordinator(brokers)
            for broker in dict.fromkeys(places.values()):
                await self._stage(broker, coordinator, token, [row for row in rows if places[row] == broker])
            await self._decide(coordinator, token, rows, list(dict.fromkeys(places.values())))
        except Error as error:
            if not error.retryable:
                self._refused(f"batch {self._batch} of query {self._query}: {error}")
                self._query, self._batch = self._query + 1, 0
            return False
        for row in rows:
            self._written(row, places[row])
        return True

    @property
    def _id(self) -> str:
        return f"query-{self._query}"

    async def _coordinator(self, brokers: list[str]) -> str:
        """The one that brokers know, or the first broker, once all of them have been told."""
        known = sorted({name for broker in brokers if (name := await self._begin(broker, ""))})
        chosen = known[0] if known else brokers[0]
        for broker in sorted(brokers, key=lambda name: name != chosen):
            await self._begin(broker, chosen)
        return chosen

    async def _begin(self, broker: str, coordinator: str) -> str:
        request = staging_pb2.BeginRequest(
            query_id=self._id, batch_id=self._batch, topics=[self._topic], coordinator=coordinator, fixed_topics=True
        )
        response = staging_pb2.BeginResponse.FromString(await self._call(broker, "Begin", request.SerializeToString()))
        check(response.status)
        return str(response.coordinator)

    async def _stage(self, broker: str, coordinator: str, token: bytes, rows: list[int]) -> None:
        bodies = [b"%d" % row for row in rows]
        ends = [sum(map(len, bodies[: at + 1])) for at in range(len(bodies))]
        block = staging_pb2.RowBlock(
            count=len(rows), bodies=b"".join(bodies), body_ends=b"".join(end.to_bytes(4, "little") for end in ends),
            born_ms=1,
        )  # fmt: skip
        request = staging_pb2.StageRequest(
            topic=self._topic, query_id=self._id, batch_id=self._batch, token=token, coordinator=coordinator, rows=block
        )
        answer = await self._call(broker, "Stage", request.SerializeToString())
        check(staging_pb2.StageResponse.FromString(answer).status)

    async def _decide(self, coordinator: str, token: bytes, rows: list[int], brokers: list[str]) -> None:
        request = staging_pb2.DecideRequest(
            query_id=self._id, batch_id=self._batch, topics=[self._topic],
            winners=[staging_pb2.Winner(token=token, brokers=brokers)],
            content=staging_pb2.BatchContent(rows=len(rows), checksum=sum(rows)),
        )  # fmt: skip
        answer = await self._call(coordinator, "Decide", request.SerializeToString())
        check(staging_pb2.DecideResponse.FromString(answer).status)

    async def _call(self, broker: str, method: str, request: bytes) -> bytes:
        return await self._net.unary(f"{broker}:8081", SERVICE + method, request, timeout_ms=CALL_MS)
