"""Whose query it is, and which of its batches count: calls of strangers and of copied checkpoints are refused."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from evenq_broker.loops.resizing.resizing import drain, permit
from evenq_broker.settings import StagingSettings, StoreSettings

from evenq.errors import BadRequest, Error, Forbidden, PreconditionFailed, QueueClosed, TooManyRequests
from evenq.model import Permission
from evenq.serving.rpc import ACTS_FOR, RpcContext
from evenq.wire.status import check
from evenq.wire.stubs.evenq.v1 import staging_pb2
from tests.unit.evenq_broker.loops.staging.test_staging import bodies, one
from tests.unit.evenq_broker.staged import ABANDON, BEGIN, DECIDE, STAGE, block, decide, named, stage_rows

WRITE, SKIP = staging_pb2.ON_DECIDED_WRITE, staging_pb2.ON_DECIDED_SKIP


class Sparks:
    """What writers call at broker `a`, each as a user; "": calls are not signed."""

    def __init__(self, stage: Any, user: str = "owner", *, topics: Sequence[str] = ("t",), query: str = "q") -> None:
        self._stage, self.user, self.topics, self.query = stage, user, topics, query
        self.headers: list[tuple[str, str]] = []

    async def call(self, method: str, request: Any, response: Any) -> Any:
        context = RpcContext(method, self.headers, "127.0.0.1:1", None)
        if self.user:
            context.caller = SimpleNamespace(name=self.user, internal=self.user == "server")  # type: ignore[assignment]
        [rpc] = [one for one in self._stage.brokers[0].rpcs() if one.method == method]
        answer = response.FromString(await self._stage.during(rpc.handler(request.SerializeToString(), context)))
        check(answer.status)
        return answer

    async def begin(self, batch: int = 0, *, fixed: bool | None = True, on_decided: int = 0) -> bool:
        """Returns whether the batch was decided before."""
        request = staging_pb2.BeginRequest(
            query_id=self.query, batch_id=batch, topics=self.topics, coordinator="a", on_decided=on_decided
        )
        if fixed is not None:
            request.fixed_topics = fixed
        return bool((await self.call(BEGIN, request, staging_pb2.BeginResponse)).decided)

    async def stage(self, body: str, batch: int = 0, *, token: str = "a") -> None:
        rows = stage_rows(block([body]), query=self.query, batch=batch, token=token, topic=self.topics[0])
        await self.call(STAGE, rows, staging_pb2.StageResponse)

    async def decide(
        self, batch: int = 0, *, token: str = "a", rows: int = -1, checksum: int = 0, on_decided: int = 0,
        broker: str = "a",
    ) -> bool:  # fmt: skip
        """Returns whether it was decided before. `rows`: -1: an older client, which says nothing of them."""
        request = decide({token: [broker]}, query=self.query, batch=batch, topics=self.topics)
        request.on_decided = on_decided
        if rows >= 0:
            request.content.rows, request.content.checksum = rows, checksum
        return bool((await self.call(DECIDE, request, staging_pb2.DecideResponse)).already)

    async def write(self, body: str, batch: int, **begin: Any) -> None:
        """A whole batch of one row."""
        assert not await self.begin(batch, **begin)
        await self.stage(body, batch, token=body)
        assert not await self.decide(batch, token=body, rows=1, checksum=hash(body) & 0xFF)


async def test_a_stranger_can_neither_decide_nor_touch_a_query(stage: Any) -> None:
    """13: its owner's next batches would pass as written, and never be stored."""
    broker = await one(stage)
    owner, stranger = Sparks(stage), Sparks(stage, "stranger", topics=["mine"])
    await stage.during(broker.catalog.create_topic("mine", queues=1))
    await owner.write("zero", 0)
    abandon = staging_pb2.AbandonRequest(query_id="q", batch_id=1, topics=["mine"], tokens=[named("one")])
    for attempt in (
        stranger.begin(10**9), stranger.stage("x", 1, token="s"), stranger.decide(10**9),
        stranger.call(ABANDON, abandon, staging_pb2.AbandonResponse),
    ):  # fmt: skip
        with pytest.raises(Forbidden, match="query q belongs to another user, not to stranger"):
            await attempt
    await owner.write("one", 1)
    assert await bodies(stage, broker) == ["zero", "one"]


async def test_refused_rows_make_no_topic(stage: Any) -> None:
    broker = await one(stage)
    owner = Sparks(stage, topics=["mine"])
    await owner.begin()
    rows = stage_rows(block(["x"], tags=["a|b"]), topic="mine")
    with pytest.raises(Error):
        await owner.call(STAGE, rows, staging_pb2.StageResponse)
    assert broker.catalog.topics.get("mine") is None
    await owner.stage("x")
    assert broker.catalog.topics.get("mine") is not None


async def test_rows_for_a_topic_that_takes_no_messages_are_refused(stage: Any) -> None:
    broker = await one(stage)
    owner = Sparks(stage)
    await owner.begin()
    await stage.during(permit(broker.kernel, "t", Permission.READ))
    with pytest.raises(QueueClosed):
        await owner.stage("x")
    await stage.during(permit(broker.kernel, "t", Permission.READ_WRITE))
    await stage.during(drain(broker.kernel, on=True))
    with pytest.raises(QueueClosed):
        await owner.stage("x")


async def test_a_call_that_a_server_passed_on_is_its_users(stage: Any) -> None:
    await one(stage)
    await Sparks(stage).begin()
    passed = Sparks(stage, "server")
    passed.headers = [(ACTS_FOR, "owner")]
    assert not await passed.begin()
    passed.headers = [(ACTS_FOR, "stranger")]
    with pytest.raises(Forbidden):
        await passed.begin()
    claiming = Sparks(stage, "stranger")  # a client may say what it wants
    claiming.headers = [(ACTS_FOR, "owner")]
    with pytest.raises(Forbidden):
        await claiming.begin()


@pytest.mark.parametrize("fixed", [True, None], ids=["now", "older client"])
async def test_a_copied_checkpoint_that_writes_to_another_topic_is_refused(stage: Any, fixed: bool | None) -> None:
    """12a, 13: the copy's rows were dropped as written before, and then those of the original."""
    broker = await one(stage)
    await stage.during(broker.catalog.create_topic("other", queues=1))
    original, copy = Sparks(stage), Sparks(stage, topics=["other"])
    await original.write("zero", 0)
    for attempt in (copy.begin(1, fixed=fixed), copy.stage("x", 1, token="c"), copy.decide(1, token="c")):
        with pytest.raises(PreconditionFailed, match=r"q writes to t, this call is for other.*copied checkpo"):
            await attempt
    await original.write("one", 1)
    assert await bodies(stage, broker) == ["zero", "one"]


async def test_a_query_whose_rows_name_topics_may_write_to_any_and_one_of_an_older_client_too(stage: Any) -> None:
    broker = await one(stage)
    await stage.during(broker.catalog.create_topic("other", queues=1))
    await Sparks(stage).begin(fixed=False)
    other = Sparks(stage, topics=["other"])
    assert not await other.begin(fixed=False)
    await other.stage("there")
    assert not await other.decide()
    assert await bodies(stage, broker, "other") == ["there"]
    with pytest.raises(PreconditionFailed, match="query q writes to the topics that its rows name, this call is fo"):
        await other.begin(1, fixed=True)
    older = Sparks(stage, query="older")
    assert not await older.begin(fixed=None)
    assert not await Sparks(stage, query="older", topics=["other"]).begin(fixed=True), "it belongs to this one now"
    with pytest.raises(PreconditionFailed, match="query older writes to other"):
        await older.begin(fixed=None)


async def test_only_a_call_that_asks_for_the_coordinator_gets_the_names_of_all_brokers(stage: Any) -> None:
    catalog = (await one(stage)).catalog
    catalog.routes.brokers = lambda: [SimpleNamespace(name="a"), SimpleNamespace(name="z")]
    spark = Sparks(stage)
    for coordinator, names in (("", ["a", "z"]), ("a", []), ("", ["a", "z"])):
        request = staging_pb2.BeginRequest(query_id="q", topics=["t"], coordinator=coordinator)
        assert list((await spark.call(BEGIN, request, staging_pb2.BeginResponse)).brokers) == names


async def test_a_drained_broker_says_that_it_should_not_become_a_coordinator(stage: Any) -> None:
    broker = await one(stage)
    request = staging_pb2.BeginRequest(query_id="q", topics=["t"])
    for draining in (False, True):
        if draining:
            await stage.during(drain(broker.kernel, on=True))
        assert (await Sparks(stage).call(BEGIN, request, staging_pb2.BeginResponse)).draining is draining


async def test_a_query_that_began_without_a_user_belongs_to_the_first_one(stage: Any) -> None:
    await one(stage)
    await Sparks(stage, "").begin()
    await Sparks(stage).begin()
    await Sparks(stage, "").begin()  # calls need no signature, then every one may
    with pytest.raises(Forbidden):
        await Sparks(stage, "stranger").begin()


async def test_an_older_copy_of_a_checkpoint_is_an_error_unless_its_batches_shall_be_skipped(stage: Any) -> None:
    broker = await one(stage)
    query = Sparks(stage)
    for batch in range(3):
        await query.write(f"{batch}", batch)
    for attempt in (query.begin(1), query.begin(1, fixed=None), query.decide(1), query.decide(1, rows=1)):
        with pytest.raises(PreconditionFailed, match=r"batch 1 .* is older than batch 2, .*older or second copy"):
            await attempt
    assert await query.begin(1, on_decided=SKIP)
    assert await query.decide(1, rows=7, on_decided=SKIP)
    assert await bodies(stage, broker) == ["0", "1", "2"]


async def test_the_last_batch_may_come_again_with_the_same_rows_alone(stage: Any) -> None:
    """Spark repeats it after a crash; a copy of the checkpoint has other rows under the number."""
    broker = await one(stage)
    query = Sparks(stage)
    await query.begin(4)
    await query.stage("four", 4)
    assert not await query.decide(4, rows=1, checksum=2**64 - 1)
    assert await query.begin(4)
    assert await query.decide(4, rows=1, checksum=2**64 - 1)
    assert await query.decide(4), "an older client says nothing of its rows"
    for rows, checksum in ((2, 2**64 - 1), (1, 5)):
        with pytest.raises(PreconditionFailed, match=r"decided with 1 rows, and now has . rows that are not the same"):
            await query.decide(4, rows=rows, checksum=checksum)
    assert await query.decide(4, rows=2, on_decided=SKIP)
    assert await bodies(stage, broker) == ["four"]


async def test_batches_are_written_again_where_that_is_asked_for_and_also_to_another_topic(stage: Any) -> None:
    broker = await one(stage)
    await stage.during(broker.catalog.create_topic("other", queues=1))
    query = Sparks(stage)
    for batch in range(3):
        await query.write(f"{batch}", batch)
    await query.write("1 again", 1, on_decided=WRITE)
    with pytest.raises(PreconditionFailed, match="is older than batch 1"):
        await query.begin(0)
    await query.write("2 again", 2)
    assert await bodies(stage, broker) == ["0", "1", "2", "1 again", "2 again"]
    moved = Sparks(stage, topics=["other"])
    await moved.write("3 there", 3, on_decided=WRITE)
    assert await bodies(stage, broker, "other") == ["3 there"]
    with pytest.raises(PreconditionFailed, match="query q writes to other, this call is for t"):
        await query.begin(4)
    with pytest.raises(Forbidden):
        await Sparks(stage, "stranger").begin(0, on_decided=WRITE)


async def test_decisions_are_not_taken_back_while_a_broker_has_not_published_them(stage: Any) -> None:
    await one(stage)
    query = Sparks(stage)
    await query.begin()
    await query.decide(broker="away")
    with pytest.raises(TooManyRequests, match="decided and not published yet at brokers away"):
        await query.begin(on_decided=WRITE)


async def test_what_was_dropped_cannot_win_when_decisions_are_taken_back(stage: Any) -> None:
    broker = await one(stage)
    query = Sparks(stage)
    await query.write("zero", 0)
    await query.stage("one", 1, token="lost")
    request = staging_pb2.AbandonRequest(query_id="q", batch_id=1, topics=["t"], tokens=[named("lost")])
    await query.call(ABANDON, request, staging_pb2.AbandonResponse)
    await stage.until(lambda: broker.staging.table.rows == 0)
    assert not await query.begin(0, on_decided=WRITE)
    with pytest.raises(PreconditionFailed, match="1 of its 1 stagings were dropped"):
        await query.decide(1, token="lost")


async def test_whose_a_query_is_and_what_it_wrote_last_survive_a_restart(stage: Any, tmp_path: Path) -> None:
    settings = {"store": StoreSettings(path=tmp_path)}
    broker = await one(stage, **settings)
    query = Sparks(stage)
    await query.begin(3)
    await query.stage("three", 3)
    await query.decide(3, rows=1, checksum=9)
    for _ in range(2):  # once from the log, once from a snapshot
        await stage.end(broker)
        broker = await stage.broker(poll_default_ms=1, **settings)
        errors: list[type[Error]] = []
        for attempt in (
            Sparks(stage, "stranger").begin(), Sparks(stage, topics=["other"]).begin(4), query.decide(3, rows=2),
        ):  # fmt: skip
            with pytest.raises(Error) as caught:
                await attempt
            errors.append(type(caught.value))
        assert errors == [Forbidden, PreconditionFailed, PreconditionFailed]
        assert await query.decide(3, rows=1, checksum=9)


async def test_one_user_leaves_something_of_every_limit_to_the_next(stage: Any) -> None:
    """17: queries, staged bytes and decisions that wait were one pot for all."""
    await one(stage, staging=StagingSettings(queries_max=8, bytes_max=8_000, decisions_max=8))

    async def filled(work: Callable[[Sparks], Awaitable[Any]], count: int) -> None:
        for number in range(count):
            await work(Sparks(stage, "greedy", query=f"g{number}"))
        with pytest.raises(TooManyRequests, match="greedy"):
            await work(Sparks(stage, "greedy", query=f"g{count}"))

    await filled(lambda query: query.begin(), 6)
    await filled(lambda query: query.stage("x" * 500, token=query.query), 6)
    await filled(lambda query: Sparks(stage, "greedy", query="g0").decide(int(query.query[1:]), broker="away"), 6)
    owner = Sparks(stage)
    await owner.begin()
    await owner.stage("x" * 500)
    assert not await owner.decide(broker="away")


async def test_what_is_kept_of_tokens_is_bounded_and_shared(stage: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("evenq_broker.loops.staging.deciding.TOKENS_MAX", 8)
    await one(stage)
    greedy = Sparks(stage, "greedy")

    async def abandon(query: Sparks, count: int, batch: int = 5) -> None:
        tokens = [named(f"{query.user}{number}") for number in range(count)]
        request = staging_pb2.AbandonRequest(query_id=query.query, batch_id=batch, topics=["t"], tokens=tokens)
        await query.call(ABANDON, request, staging_pb2.AbandonResponse)

    await greedy.begin()
    assert not await greedy.decide(broker="away")
    await abandon(greedy, 5)
    with pytest.raises(TooManyRequests, match=r"names 1 stagings, and broker a keeps 6, 6 of them of greedy; the li"):
        await greedy.decide(1, broker="away")
    await abandon(Sparks(stage, query="mine"), 2)
    with pytest.raises(TooManyRequests, match="an abort of query"):
        await abandon(Sparks(stage, query="more"), 1)


async def test_a_token_of_other_rows_is_refused(stage: Any) -> None:
    """Blocks of a token are told apart by their number alone: one of somebody else would stand for the victim's."""
    broker = await one(stage)
    await Sparks(stage).stage("zero", token="known")
    for other in (Sparks(stage, "stranger", query="other"), Sparks(stage)):
        with pytest.raises(Forbidden, match="belongs to other rows"):
            await other.stage("forged", 1, token="known")
    assert broker.staging.table.rows == 1


async def test_where_calls_are_not_signed_a_topic_has_the_share(stage: Any) -> None:
    await one(stage, staging=StagingSettings(queries_max=4))
    for number in range(3):
        await Sparks(stage, "", query=f"g{number}").begin()
    with pytest.raises(TooManyRequests, match=r"remembers 3 queries, 3 of t, .*staging.queries_max 4"):
        await Sparks(stage, "", query="g3").begin()
    await Sparks(stage, "", topics=["other"]).begin()


async def test_what_cannot_be_kept_is_refused(stage: Any) -> None:
    await one(stage)
    with pytest.raises(BadRequest, match="17 fixed topics, the limit is 16"):
        await Sparks(stage, topics=[f"t{number}" for number in range(17)]).begin()
    with pytest.raises(BadRequest, match="topic name"):
        await Sparks(stage, topics=["a b"]).begin()
    with pytest.raises(BadRequest, match="batch id of query q is -1, it must be 0 or more"):
        await Sparks(stage).begin(-1)
    long = "x" * 10_000
    start = staging_pb2.BeginRequest(query_id="q", topics=["t"], coordinator=long)
    rows = stage_rows(block(["x"]), coordinator=long)
    for method, request, response in (
        (BEGIN, start, staging_pb2.BeginResponse), (STAGE, rows, staging_pb2.StageResponse),
        (DECIDE, decide({"a": ["a", long]}), staging_pb2.DecideResponse),
    ):  # fmt: skip
        with pytest.raises(BadRequest, match="broker name"):
            await Sparks(stage).call(method, request, response)
    with pytest.raises(BadRequest, match="names no topic"):
        await Sparks(stage, topics=[]).begin()
