"""The listener: what Spark's events become at the port, in a registry and in the log."""

from __future__ import annotations

import logging
import socket
import urllib.request
from collections.abc import Iterator

import pytest
from prometheus_client import CollectorRegistry
from pyspark_evenq import EvenqProgressListener
from pyspark_evenq.figures.listener import QUERIES_MAX
from pyspark_evenq.figures.query_figures import Failure

from evenq.errors import SettingsError
from tests.unit.pyspark_evenq.progress import event, nested, offset, progress, source


class Told:
    """An event with progress, `rows` messages of queue 0 further."""

    def __init__(self, end: int, latest: int, *, name: str = "delays", **more: object) -> None:
        result = source(offset({0: 0}), offset({0: end}, **more), offset({0: latest}), rows=end)
        self.progress = progress(result, name=name)


@pytest.fixture
def listener() -> Iterator[EvenqProgressListener]:
    made = EvenqProgressListener(port=0, log_every_s=0)
    yield made
    made.close()


def page(listener: EvenqProgressListener) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{listener.port}/metrics", timeout=60) as response:
        return str(response.read().decode())


def test_a_scrape_of_the_port_shows_lag_rows_and_losses_by_the_name_of_the_query(
    listener: EvenqProgressListener,
) -> None:
    assert "evenq_spark_rows_total{" not in page(listener)
    listener.onQueryStarted(event())
    listener.onQueryProgress(Told(10, 15, lost=nested({0: 3})))
    shown = page(listener)
    labels = 'broker="broker-a",query="delays",queue="0",topic="flights"'
    assert f"evenq_spark_queue_lag_messages{{{labels}}} 5.0" in shown
    assert 'evenq_spark_rows_total{query="delays"} 10.0' in shown
    assert 'evenq_spark_lost_messages_total{query="delays"} 3.0' in shown
    assert 'evenq_spark_query_active{query="delays"} 1.0' in shown
    listener.onQueryTerminated(event())
    shown = page(listener)
    assert "evenq_spark_queue_lag_messages{" not in shown
    assert 'evenq_spark_query_active{query="delays"} 0.0' in shown


def test_the_metrics_stand_in_a_registry_of_the_driver_until_the_listener_is_closed() -> None:
    registry = CollectorRegistry()
    made = EvenqProgressListener(registry=registry)
    assert made.port is None
    made.onQueryProgress(Told(10, 15))
    assert registry.get_sample_value("evenq_spark_lag_messages", {"query": "delays"}) == 5
    made.close()
    made.close()
    assert registry.get_sample_value("evenq_spark_lag_messages", {"query": "delays"}) is None


def test_a_port_that_is_taken_is_an_error_that_says_so_and_leaves_nothing_behind() -> None:
    registry = CollectorRegistry()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(SettingsError, match=f"127.0.0.1:{port}.*another port, 0 for a free one"):
            EvenqProgressListener(port=port, registry=registry)
    EvenqProgressListener(registry=registry).close()


def test_without_a_port_and_a_registry_it_only_logs(caplog: pytest.LogCaptureFixture) -> None:
    times = iter(range(0, 1_000, 25))
    made = EvenqProgressListener(now=lambda: float(next(times)))
    with caplog.at_level(logging.INFO):
        for end in (10, 20, 30, 40):  # at 0, 25, 50 and 75 s
            made.onQueryProgress(Told(end, 45))
    lines = [line for line in caplog.messages if line.startswith("query delays: batch")]
    assert len(lines) == 2
    assert "lag 35 over 1 queues, min 35, max 35, avg 35.0 (furthest behind: flights@broker-a:0 35)" in lines[0]
    assert "100 rows so far" in lines[1]


def test_changes_of_state_are_a_line_each_and_each_once(
    listener: EvenqProgressListener, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        for _ in range(3):  # an idle query tells of its last batch again
            listener.onQueryProgress(Told(10, 10, lost=nested({0: 3}), away={"flights": {"broker-b": [1]}}, gen=1))
        listener.onQueryProgress(Told(11, 11))
    assert caplog.messages == [
        "query delays lost messages=3 of flights on broker-a (queue 0): gone before they were read",
        "query delays continues without flights on broker-b (queue 1): no broker serves them",
        "query delays follows a reset of its group",
        "query delays: brokers serve flights on broker-b (queue 1) again",
    ]


def test_lost_ownership_is_told_in_the_words_of_the_error(
    listener: EvenqProgressListener, caplog: pytest.LogCaptureFixture
) -> None:
    listener.onQueryProgress(Told(10, 10))
    trace = "[STREAM_FAILED] Query failed\nTraceback:\n  File x\npyspark_evenq.member.member.QueueTaken: queue f@a:0 is bea's\n"
    with caplog.at_level(logging.ERROR):
        listener.onQueryTerminated(event(exception=trace))
    (line,) = caplog.messages
    assert line == (
        "query delays lost the ownership of queues and ended: pyspark_evenq.member.member.QueueTaken: queue f@a:0 is bea's"
    )
    (query,) = listener.queries()
    assert query.failures == {Failure.QUEUE_TAKEN: 1}


def test_a_query_that_failed_before_its_first_batch_is_known_too(listener: EvenqProgressListener) -> None:
    listener.onQueryStarted(event())
    listener.onQueryTerminated(event(exception="pyspark_evenq.member.member.GroupBusy: group g is busy"))
    (query,) = listener.queries()
    assert (query.name, query.active, query.failures) == ("delays", False, {Failure.GROUP_BUSY: 1})


def test_queries_that_read_with_other_sources_are_not_there(listener: EvenqProgressListener) -> None:
    listener.onQueryStarted(event())
    result = event()
    result.progress = progress(source('{"t":{"0":1}}', '{"t":{"0":2}}', None))
    listener.onQueryProgress(result)
    listener.onQueryIdle(event())
    listener.onQueryTerminated(event(exception="java.lang.Error"))
    assert listener.queries() == []


def test_the_query_that_ended_first_is_forgotten_where_there_are_too_many(listener: EvenqProgressListener) -> None:
    for number in range(QUERIES_MAX):
        listener.onQueryProgress(Told(1, 1, name=f"query-{number:03}"))
    listener.onQueryTerminated(event())  # they share a run here: it ends the last one
    listener.onQueryProgress(Told(1, 1, name="one more"))
    names = {query.name for query in listener.queries()}
    assert len(names) == QUERIES_MAX
    assert f"query-{QUERIES_MAX - 1:03}" not in names
    listener.onQueryProgress(Told(1, 1, name="and another"))
    assert "query-000" not in {query.name for query in listener.queries()}


def test_nothing_that_goes_wrong_reaches_the_query(
    listener: EvenqProgressListener, caplog: pytest.LogCaptureFixture
) -> None:
    listener.onQueryProgress(Told(10, 15))
    broken = event()
    broken.progress = None
    listener.onQueryProgress(broken)
    assert "could not be read" in caplog.text
    assert listener.queries()[0].rows == 10


def test_an_idle_query_is_alive(listener: EvenqProgressListener) -> None:
    listener.onQueryProgress(Told(10, 15))
    (before,) = listener.queries()
    listener.onQueryIdle(event())
    (after,) = listener.queries()
    assert after.last_event_s > before.last_event_s
    assert after.lags == before.lags


def test_limits_below_nothing_are_refused() -> None:
    with pytest.raises(SettingsError, match="queues_max=-1"):
        EvenqProgressListener(queues_max=-1)
