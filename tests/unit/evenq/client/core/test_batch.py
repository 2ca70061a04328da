"""Batches keep order and limits."""

from dataclasses import dataclass

from evenq.client.core.batch import QueueBatch


@dataclass
class Item:
    encoded: bytes
    urgent: bool = False


def test_a_batch_is_ready_when_full_urgent_or_due() -> None:
    batch: QueueBatch[Item] = QueueBatch(bytes_max=10, messages_max=3)
    assert not batch.ready
    batch.add(Item(b"1234"))
    assert not batch.ready
    batch.due = True
    assert batch.ready
    assert len(batch.take()) == 1
    assert not batch.ready
    batch.add(Item(b"1", urgent=True))
    assert batch.ready
    batch.take()
    batch.add(Item(b"12345"))
    batch.add(Item(b"12345"))
    assert batch.ready


def test_a_batch_keeps_both_limits_and_the_order_and_a_large_message_goes_alone() -> None:
    batch: QueueBatch[Item] = QueueBatch(bytes_max=4, messages_max=3)
    items = [Item(b"a"), Item(b"bb"), Item(b"cccccc"), Item(b"d"), Item(b"e"), Item(b"f"), Item(b"g")]
    for item in items:
        batch.add(item)
    taken = [batch.take() for _ in range(4)]
    assert [[i.encoded for i in part] for part in taken] == [[b"a", b"bb"], [b"cccccc"], [b"d", b"e", b"f"], [b"g"]]
    assert batch.take() == []


def test_a_failed_batch_stands_first_again() -> None:
    batch: QueueBatch[Item] = QueueBatch(bytes_max=100, messages_max=2)
    for name in (b"a", b"b", b"c"):
        batch.add(Item(name))
    batch.put_back(batch.take())
    assert [item.encoded for item in batch.take()] == [b"a", b"b"]


def test_what_is_dropped_counts_no_more() -> None:
    batch: QueueBatch[Item] = QueueBatch(bytes_max=4, messages_max=3)
    for item in (Item(b"aa", urgent=True), Item(b"b"), Item(b"cc")):
        batch.add(item)
    assert [item.encoded for item in batch.drop(lambda item: item.urgent)] == [b"aa"]
    assert not batch.ready
    assert batch.drop(lambda _: False) == []
    batch.due = True
    assert [item.encoded for item in batch.take()] == [b"b", b"cc"]
