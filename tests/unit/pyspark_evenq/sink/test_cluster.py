"""The choice of a query's coordinator, among brokers in memory. With real ones: tests/integration/test_spark_sink.py."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from pyspark_evenq.sink import cluster

from evenq.errors import ConnectionFailed
from evenq.wire.addresses import meant_broker


class Brokers:
    """Brokers that each store one coordinator, called at `NAME:1` or through another one at `OTHER:1#NAME`."""

    def __init__(self, *names: str) -> None:
        self.known = dict.fromkeys(names, "")
        self.draining: set[str] = set()
        self.silent: set[str] = set()
        self.lists_others = True

    def begin(self, address: str, beginning: cluster.BegunBatch, coordinator: str) -> Any:
        alone, meant = meant_broker(address)
        name = meant or alone.partition(":")[0]
        if self.silent & {name, alone.partition(":")[0]}:
            raise ConnectionFailed(f"{name} is silent")
        if coordinator and not self.known[name]:
            self.known[name] = coordinator
        return SimpleNamespace(
            coordinator=self.known[name],
            brokers=sorted(self.known) if self.lists_others and not coordinator else [],
            draining=name in self.draining,
        )


@pytest.fixture
def brokers(monkeypatch: pytest.MonkeyPatch) -> Brokers:
    made = Brokers("a", "b", "c", "d")
    monkeypatch.setattr(cluster, "_begin", made.begin)
    return made


def chosen(topic_at: str, query: str = "q", *, fixed: bool = False) -> str:
    beginning = cluster.BegunBatch(query_id=query, batch_id=0, topic=f"at-{topic_at}", fixed_topic=fixed)
    return cluster._chosen({name: f"{name}:1" for name in topic_at}, beginning)


def test_tasks_with_other_first_topics_choose_one_coordinator_and_all_brokers_know_it(brokers: Brokers) -> None:
    first = chosen("a")
    assert set(brokers.known.values()) == {first}
    assert chosen("b") == chosen("cd") == first


def test_two_tasks_that_choose_at_the_same_time_choose_the_same(brokers: Brokers) -> None:
    """Neither finds a coordinator; only the list of brokers makes them agree."""
    names = []
    for topic_at in ("a", "b"):
        brokers.known = dict.fromkeys(brokers.known, "")
        names.append(chosen(topic_at))
    assert len(set(names)) == 1


def test_a_drained_broker_is_asked_and_does_not_become_the_coordinator(brokers: Brokers) -> None:
    brokers.draining = {"c", "d"}
    names = set()
    for number in range(20):
        brokers.known = dict.fromkeys("abcd", "")
        names.add(chosen("a", f"query-{number}"))
    assert names == {"a", "b"}
    brokers.known = dict.fromkeys("abc", "") | {"d": "d"}
    assert chosen("a") == "d"


def test_the_coordinator_of_a_fixed_topic_serves_it(brokers: Brokers) -> None:
    for number in range(20):
        brokers.known = dict.fromkeys("abcd", "")
        assert chosen("ab", f"query-{number}", fixed=True) in {"a", "b"}
        assert "" not in brokers.known.values()


def test_a_query_does_not_begin_while_a_broker_without_its_topic_is_silent(brokers: Brokers) -> None:
    brokers.silent = {"d"}
    with pytest.raises(ConnectionFailed, match="d is silent"):
        chosen("a")
    brokers.known["b"] = "b"
    assert chosen("a") == "b", "another one knows the coordinator"


def test_brokers_of_older_versions_are_those_of_the_topic(brokers: Brokers) -> None:
    brokers.lists_others = False
    assert chosen("ab") in {"a", "b"}
    assert brokers.known["c"] == ""
