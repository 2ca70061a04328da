"""Batches keep order and limits."""

from dataclasses import dataclass

from evenq.client.core.sending.batch import QueueBatch


@dataclass
class Item:
    encoded: bytes
    urgent: bool = False
    count: int = 1
    alone: bool = False

    @property
    def size(self) -> int:
        return len(self.encoded)


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


def test_what_goes_alone_has_no_neighbour() -> None:
    batch: QueueBatch[Item] = QueueBatch(bytes_max=100, messages_max=5)
    for item in (Item(b"a"), Item(b"b", alone=True), Item(b"c", alone=True), Item(b"d"), Item(b"e")):
        batch.add(item)
    taken = [[item.encoded for item in batch.take()] for _ in range(4)]
    assert taken == [[b"a"], [b"b"], [b"c"], [b"d", b"e"]]
    assert not len(batch)


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


def test_a_block_counts_its_messages_and_stays_whole() -> None:
    batch: QueueBatch[Item] = QueueBatch(bytes_max=100, messages_max=5)
    for name, count in ((b"a", 1), (b"b", 3), (b"c", 2), (b"d", 9), (b"e", 1)):
        batch.add(Item(name, count=count))
    taken = [[item.encoded for item in batch.take()] for _ in range(4)]
    assert taken == [[b"a", b"b"], [b"c"], [b"d"], [b"e"]]
    batch.add(Item(b"f", count=4))
    assert not batch.ready
    batch.put_back([Item(b"g", count=1)])
    batch.due = False
    assert batch.ready, "five messages"
    assert [item.encoded for item in batch.drop(lambda item: item.count == 1)] == [b"g"]
    assert not batch.ready
