"""The table of live brokers: who holds a name, versions, expiry, bounds; and its invariants under any history."""

import pytest
from evenq_nameserver.core.registry import LEFT_MAX, LEFT_MS, BrokerEntry, Registry, TopicEntry
from hypothesis import given
from hypothesis import strategies as st

from evenq.errors import PreconditionFailed, TooManyRequests
from evenq.model.route import BrokerAddress

EXPIRY_MS = 100


def entry(
    name: str = "a",
    topics: dict[str, int] | None = None,
    *,
    incarnation: str = "i1",
    start_ms: int = 1,
    epoch: int = 1,
    data_version: int = 1,
    port: int = 8081,
) -> BrokerEntry:
    return BrokerEntry(
        name=name,
        broker_id=0,
        cluster="evenq",
        epoch=epoch,
        incarnation=incarnation,
        start_ms=start_ms,
        version="0.1",
        addresses=(BrokerAddress("default", "127.0.0.1", port),),
        data_version=data_version,
        topics={
            topic: TopicEntry(name=topic, message_type=1, read_queues=queues, write_queues=queues, permission=4)
            for topic, queues in (topics or {}).items()
        },
    )


def registry(brokers_max: int = 100) -> Registry:
    return Registry(expiry_ms=EXPIRY_MS, brokers_max=brokers_max)


def test_a_change_raises_the_version_of_the_table_and_of_its_topics_only() -> None:
    table = registry()
    table.register(entry("a", {"t": 4, "u": 4}), 0)
    assert (table.version, {route.topic: route.version for route in table.routes()}) == (1, {"t": 1, "u": 1})
    table.register(entry("a", {"t": 8, "u": 4}, data_version=2), 1)
    assert (table.version, {route.topic: route.version for route in table.routes()}) == (2, {"t": 2, "u": 1})
    table.register(entry("b", {"u": 2}), 2)
    assert {route.topic: route.version for route in table.routes()} == {"t": 2, "u": 3}
    assert [broker.name for broker in table.routes(["u"])[0].brokers] == ["a", "b"]


def test_telling_the_same_again_changes_nothing() -> None:
    table = registry()
    assert table.register(entry(), 0) is not None
    assert table.register(entry(), 1) is None
    assert table.version == 1


def test_a_new_address_changes_all_routes_of_the_broker() -> None:
    table = registry()
    table.register(entry("a", {"t": 4}), 0)
    table.register(entry("a", {"t": 4}, port=9000), 1)
    assert table.routes(["t"])[0].version == 2


def test_a_registration_that_was_overtaken_on_the_way_is_ignored() -> None:
    table = registry()
    table.register(entry("a", {"t": 8}, data_version=2), 0)
    assert table.register(entry("a", {"t": 4}, data_version=1), 1) is None
    assert table.brokers()[0].topics["t"].read_queues == 8


def test_the_highest_epoch_holds_the_name() -> None:
    table = registry()
    table.register(entry(incarnation="old", epoch=1, start_ms=100), 0)
    change = table.register(entry(incarnation="new", epoch=2, start_ms=1), 1)
    assert change is not None
    assert change.replaced is not None
    assert change.replaced.incarnation == "old"
    with pytest.raises(PreconditionFailed, match="leader epoch 2, this one has 1"):
        table.register(entry(incarnation="old", epoch=1, start_ms=100), 2)


def test_among_equals_the_newest_start_holds_the_name_and_the_other_is_told_of_it() -> None:
    table = registry()
    table.register(entry(incarnation="first", start_ms=100), 0)
    table.register(entry(incarnation="second", start_ms=200, port=9000), 1)
    with pytest.raises(PreconditionFailed, match=r"127.0.0.1:9000, incarnation second, which started later"):
        table.register(entry(incarnation="first", start_ms=100), 2)
    with pytest.raises(PreconditionFailed):
        table.register(entry(incarnation="third", start_ms=200), 2)
    assert table.heartbeat("a", "first", 1, 3) is True


def test_a_heartbeat_asks_for_everything_when_anything_is_unknown() -> None:
    table = registry()
    assert table.heartbeat("a", "i1", 1, 0) is True
    table.register(entry(data_version=3), 0)
    assert table.heartbeat("a", "i1", 3, 1) is False
    assert table.heartbeat("a", "i1", 4, 1) is True
    assert table.heartbeat("a", "other", 3, 1) is True


def test_silence_drops_a_broker_and_a_heartbeat_keeps_it() -> None:
    table = registry()
    table.register(entry("a", {"t": 1}), 0)
    table.register(entry("b", {"t": 1}), 0)
    table.heartbeat("b", "i1", 1, 50)
    assert table.expire(EXPIRY_MS - 1) == []
    assert [(change.removed, change.version) for change in table.expire(EXPIRY_MS)] == [("a", 3)]
    assert [broker.name for broker in table.routes(["t"])[0].brokers] == ["b"]
    assert [change.removed for change in table.expire(10_000)] == ["b"]
    assert table.routes() == []


def test_time_in_which_this_process_did_not_run_is_nobodys_silence() -> None:
    table = registry()
    table.register(entry("a"), 0)
    table.register(entry("b"), 60)
    table.excuse(500, 570)
    assert table.expire(599) == []
    assert [change.removed for change in table.expire(600)] == ["a"]
    assert [change.removed for change in table.expire(660)] == ["b"]
    table.register(entry("a"), 700)
    table.excuse(500, 710)
    assert [change.removed for change in table.expire(810)] == ["a"], "nobody is heard of in the future"


def test_only_the_holder_of_a_name_can_leave() -> None:
    table = registry()
    table.register(entry(incarnation="new", start_ms=2), 0)
    assert table.unregister("a", "old", 0) is None
    assert table.unregister("b", "new", 0) is None
    change = table.unregister("a", "new", 0)
    assert change is not None
    assert change.removed == "a"


def test_a_broker_that_left_is_remembered_for_a_while_or_until_it_is_back() -> None:
    table = registry()
    for name in ("a", "b"):
        table.register(entry(name, {"t": 1}), 0)
    table.unregister("b", "i1", 50)
    assert [change.removed for change in table.expire(EXPIRY_MS)] == ["a"]
    assert [(one.name, list(one.topics), ago_ms) for one, ago_ms in table.left(EXPIRY_MS)] == [
        ("b", ["t"], EXPIRY_MS - 50),
        ("a", ["t"], 0),
    ]
    table.register(entry("a"), 200)
    assert [one.name for one, _ in table.left(LEFT_MS + 49)] == ["b"]
    assert table.left(LEFT_MS + 50) == []


def test_no_more_than_a_hundred_brokers_that_left_are_remembered() -> None:
    table = registry(brokers_max=1)
    for number in range(LEFT_MAX + 2):
        table.register(entry(f"b{number}"), 0)
        table.unregister(f"b{number}", "i1", 0)
        table.check()
    assert [one.name for one, _ in table.left(0)] == [f"b{number}" for number in range(2, LEFT_MAX + 2)]


def test_the_table_is_bounded_and_known_brokers_go_on() -> None:
    table = registry(brokers_max=1)
    table.register(entry("a"), 0)
    with pytest.raises(TooManyRequests, match="1 brokers"):
        table.register(entry("b"), 0)
    assert table.register(entry("a", data_version=2), 1) is not None


names = st.sampled_from(["a", "b", "c"])
registrations = st.builds(
    entry,
    names,
    st.dictionaries(st.sampled_from(["t", "u", "v"]), st.integers(1, 2)),
    incarnation=st.sampled_from(["i1", "i2"]),
    start_ms=st.integers(1, 2),
    epoch=st.integers(1, 2),
    data_version=st.integers(1, 3),
    port=st.sampled_from([8081, 9000]),
)
steps = st.one_of(
    st.tuples(st.just("register"), registrations),
    st.tuples(st.just("heartbeat"), names),
    st.tuples(st.just("unregister"), names),
    st.tuples(st.just("wait"), st.integers(1, EXPIRY_MS)),
)


@given(st.lists(steps, max_size=40))
def test_any_history_keeps_the_invariants_and_a_watcher_that_follows_the_changes_has_the_table(
    history: list[tuple[str, object]],
) -> None:
    table, copy, now_ms, version = registry(brokers_max=2), dict[str, BrokerEntry](), 0, 0
    for step, what in history:
        changes = []
        match step, what:
            case "register", BrokerEntry():
                try:
                    changes = [table.register(what, now_ms)]
                except (PreconditionFailed, TooManyRequests):
                    changes = []
            case "heartbeat", str():
                table.heartbeat(what, "i1", 1, now_ms)
            case "unregister", str():
                changes = [table.unregister(what, "i1", now_ms)]
            case "wait", int():
                now_ms += what
                changes = [*table.expire(now_ms)]
        for change in changes:
            if change is not None:
                version += 1
                assert change.version == version
                copy.pop(change.removed, None)
                if change.broker is not None:
                    copy[change.broker.name] = change.broker
        table.check()
        assert table.brokers() == [copy[name] for name in sorted(copy)]
