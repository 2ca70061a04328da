"""The official Python SDK where one address leads to three brokers, with each connection to another one."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from evenq_proofs.outside import Outside, outside
from evenq_proofs.peer import Peer

import evenq

pytestmark = pytest.mark.slow

PEER = Path(__file__).with_name("python_sdk_peer.py")
COUNT = 60


@pytest.fixture(scope="module")
def way(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Outside]:
    with outside(
        tmp_path_factory.mktemp("way"), TRANSACTION_FIRST_CHECK_MS="1000", TRANSACTION_CHECK_INTERVAL_MS="1000"
    ) as running:
        with evenq.Admin(endpoint=running.endpoint) as admin:
            for name, kind in (
                ("plain", "NORMAL"),
                ("back", "NORMAL"),
                ("later", "DELAY"),
                ("deal", "TRANSACTION"),
                ("thin", "LITE"),
            ):
                admin.create_topic(name, queues=2, message_type=kind)
        yield running


@pytest.fixture
def start(way: Outside, tmp_path: Path, keep: Callable[[Peer], None]) -> Callable[..., Peer]:
    def started(action: str, *words: str) -> Peer:
        log_path = tmp_path / f"{action}-{len(list(tmp_path.iterdir()))}.log"
        made = Peer([sys.executable, str(PEER), action, way.endpoint, *words], log_path=log_path)
        keep(made)
        return made

    return started


def test_three_producers_and_every_consumer_get_each_message_once(start: Callable[..., Peer]) -> None:
    for first in (0, 20, 40):
        start("produce", "plain", str(first), "20").wait_done()
    simple = start("simple", "plain", "simple", "*", str(COUNT))
    simple.wait_done()
    assert sorted(simple.numbers()) == list(range(COUNT))
    pushes = [start("push", "plain", "push") for _ in range(2)]

    def got() -> list[int]:
        return sorted(number for push in pushes for number in push.numbers())

    pushes[0].wait(lambda _: len(set(got())) == COUNT)
    assert got() == list(range(COUNT))


def test_a_message_given_back_comes_again_and_a_delayed_one_is_recalled(start: Callable[..., Peer]) -> None:
    start("produce", "back", "0", "1").wait_done()
    back = start("nack", "back", "given-back")
    back.wait_done()
    first, again = back.of("got")
    assert first["got"] == again["got"]
    assert again["attempt"] == first["attempt"] + 1
    start("delay", "later", "later").wait_done()


def test_transactions_end_at_the_broker_that_has_them_and_open_ones_are_asked_about(start: Callable[..., Peer]) -> None:
    start("checker", "deal").wait(lambda said: any("ready" in one for one in said))
    start("transact", "deal", "0", "9").wait_done()
    reader = start("simple", "deal", "deal", "*", "3")
    reader.wait_done()
    assert set(range(0, 9, 3)) <= set(reader.numbers())


def test_lite_topics_are_read_through_one_address(start: Callable[..., Peer]) -> None:
    reader = start("lite-simple", "thin", "thin", "red,blue", "8")
    reader.wait(lambda said: any("ready" in one for one in said))
    start("lite-produce", "thin", "red,blue", "4").wait_done()
    reader.wait_done()
    assert sorted(map(tuple, (one["got"] for one in reader.of("got")))) == [
        (n, i) for n in ("blue", "red") for i in range(4)
    ]
