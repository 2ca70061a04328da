"""Changes of groups' settings that a broker missed."""

from typing import Any

import pytest
from evenq_broker.loops.groups import settings as group_settings
from evenq_proofs.fake_registry import FakeRegistry

from evenq.errors import ConnectionFailed
from evenq.model import BalancePolicy, GroupConfig, StartFrom
from evenq.model.retry import RetryKind, RetryPolicy
from evenq.wire.stubs.evenq.v1 import admin_pb2, peers_pb2

METHOD = group_settings.METHOD


async def change(stage: Any, broker: str, group: str, **settings: Any) -> None:
    request = admin_pb2.CreateGroupRequest(group=group, **settings)
    await stage.call("/evenq.v1.Admin/CreateGroup", request, admin_pb2.CreateGroupResponse, broker=broker)


def same(*groups: GroupConfig | None) -> bool:
    result = [
        (g.ordered, g.max_attempts, g.start_from, g.strategy, g.retry, g.balance, g.revised_ms) for g in groups if g
    ]
    return len(result) == len(groups) and len(set(result)) == 1


async def started(stage: Any, name: str, **settings: Any) -> Any:
    broker = await stage.broker(name, nameservers="ns:1", **settings)
    await stage.clock.advance(1_000)
    return broker


async def test_a_broker_that_comes_later_has_the_settings_and_groups_that_operators_asked_for(stage: Any) -> None:
    stage.net.serve("ns:1", FakeRegistry().rpcs())
    a = await started(stage, "a")
    retry = RetryPolicy(kind=RetryKind.CUSTOMIZED, delays_ms=(5, 7))
    await stage.during(
        a.catalog.create_group("all", ordered=True, max_attempts=3, strategy="AVG", start_from=StartFrom.FIRST, retry=retry,
                       balance=BalancePolicy(hold_ms=5), revised_ms=1)
    )  # fmt: skip
    await stage.during(a.catalog.create_group("by-itself"))
    b = await started(stage, "b")
    assert same(a.catalog.groups.get("all"), b.catalog.groups.get("all"))
    assert b.catalog.groups.get("by-itself") is None, "what no client asked for is not spread"


async def test_a_broker_that_was_away_takes_over_what_is_newer_and_tells_what_it_has_newer(stage: Any) -> None:
    stage.net.serve("ns:1", FakeRegistry().rpcs())
    a = await started(stage, "a")
    for name, strategy, revised_ms in (("here", "AVG", 20), ("there", "STICKY", 10), ("used", "AVG", 30)):
        await stage.during(a.catalog.create_group(name, strategy=strategy, revised_ms=revised_ms))
    b = stage.made("b", nameservers="ns:1")
    await b.open()
    for name, strategy, revised_ms in (("here", "STICKY", 10), ("there", "", 20), ("used", "", 0)):
        await stage.during(b.catalog.create_group(name, strategy=strategy, revised_ms=revised_ms))
    await stage.begin(b)
    await stage.until(
        lambda: all(same(a.catalog.groups.get(g), b.catalog.groups.get(g)) for g in ("here", "there", "used"))
    )
    reported = {name: a.catalog.groups.get(name).strategy for name in ("here", "there", "used")}
    assert reported == {"here": "AVG", "there": "", "used": "AVG"}


async def test_a_group_that_was_deleted_meanwhile_does_not_come_back_everywhere(stage: Any) -> None:
    stage.net.serve("ns:1", FakeRegistry().rpcs())
    a = await started(stage, "a")
    b = stage.made("b", nameservers="ns:1")
    await b.open()
    await stage.during(b.catalog.create_group("deleted", strategy="AVG", revised_ms=10))
    await stage.clock.advance(10)
    await stage.begin(b)
    await stage.clock.advance(10_000)
    assert a.catalog.groups.get("deleted") is None


async def test_a_change_reaches_all_brokers_complete_and_the_newest_stands(stage: Any) -> None:
    stage.net.serve("ns:1", FakeRegistry().rpcs())
    a, b = await started(stage, "a"), await started(stage, "b")
    await stage.during(a.catalog.create_group("g", strategy="STICKY", max_attempts=3, revised_ms=5))  # b missed it
    await change(stage, "a", "g", start_from="FIRST")
    assert same(a.catalog.groups.get("g"), b.catalog.groups.get("g"))
    assert (b.catalog.groups.get("g").strategy, b.catalog.groups.get("g").max_attempts) == ("STICKY", 3)
    later_ms = stage.clock.now_ms() + 60_000
    await stage.during(b.catalog.create_group("g", strategy="AVG", revised_ms=later_ms))
    with pytest.raises(ConnectionFailed, match="was changed later at b, which sends it to the other brokers"):
        await change(stage, "a", "g", strategy="NONE")
    await stage.until(lambda: same(a.catalog.groups.get("g"), b.catalog.groups.get("g")))
    assert a.catalog.groups.get("g").strategy == "AVG"
    await change(stage, "a", "g", strategy="NONE")
    assert same(a.catalog.groups.get("g"), b.catalog.groups.get("g"))
    assert b.catalog.groups.get("g").revised_ms == later_ms + 1


async def test_many_groups_are_told_in_pages_and_what_makes_no_sense_is_left_out(
    stage: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_settings, "PAGE", 2)
    stage.net.serve("ns:1", FakeRegistry().rpcs())
    a = await started(stage, "a")
    for number in range(5):
        await stage.during(a.catalog.create_group(f"g{number}", strategy="AVG", revised_ms=1 + number))
    await stage.during(a.catalog.create_group("g2", strategy="NOT_INSTALLED_THERE", revised_ms=9))
    b = await started(stage, "b")
    assert [group.name for group in b.catalog.groups.all()] == ["g0", "g1", "g3", "g4"]


async def test_a_peer_that_does_not_answer_is_asked_again_and_holds_nobody_up(stage: Any) -> None:
    stage.net.serve("ns:1", FakeRegistry().rpcs())
    a = await started(stage, "a")
    await stage.during(a.catalog.create_group("g", strategy="AVG", revised_ms=1))
    stage.net.stop("a:8081")
    b = await started(stage, "b")
    assert b.catalog.groups.get("g") is None
    stage.net.serve("a:8081", a.rpcs())
    await stage.until(lambda: b.catalog.groups.get("g") is not None)


async def test_who_asks_is_asked_back_unless_it_was_asked_before(stage: Any) -> None:
    stage.net.serve("ns:1", FakeRegistry().rpcs())
    a, b = await started(stage, "a"), await started(stage, "b")
    await stage.during(a.catalog.create_group("g", strategy="AVG", revised_ms=1))
    for back in (True, False):
        assert b.catalog.groups.get("g") is None
        request = peers_pb2.GroupSettingsRequest(broker_name="a", back=back)
        await stage.call(METHOD, request, peers_pb2.GroupSettingsResponse, broker="b")
        await stage.clock.advance(1_000)
    assert same(a.catalog.groups.get("g"), b.catalog.groups.get("g"))
