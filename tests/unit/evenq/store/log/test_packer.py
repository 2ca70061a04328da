"""What is packed is what the byte table says, in its place; what cannot be kept was never there."""

import pytest
from evenq_proofs.native_module import native_module

from evenq.errors import BadRequest, BodyTooLarge
from evenq.store import AppendBlock, TimerAppend
from evenq.store.log.native_packer import packer_of
from evenq.store.log.packer import LARGE_BYTES, Packer
from evenq.store.log.record import MESSAGE, PADDING, STATE, TIMER, TIMER_END, frame_at, message_of

SEGMENT_BYTES = 4096


@pytest.fixture(params=["python", "compiled"])
def packer(request):
    module = native_module() if request.param == "compiled" else None
    return packer_of(module, {}, segment_bytes=SEGMENT_BYTES, end=0)


def frames(batch):
    """All frames of a group, each where it says it is, with the padding between files."""
    found = []
    for run in batch.runs:
        position, data = 0, b"".join(run.parts)
        while position < len(data) and (
            frame := frame_at(data, position, run.start + run.position + position)
        ):  # zeros end a file that has no room for a header
            found.append(frame)
            position += frame.size
        assert not any(data[position:])
    return found


def timer(head=b"later", *, kind=1):
    return TimerAppend(1, 2, 7, due_ms=9_000, kind=kind, born_ms=5, head=head, system=b"sys")


def everything(packer):
    """All that a call that was taken back must leave as it was."""
    batch = packer.batch
    return (
        packer.end,
        None if batch is None else (batch.end, batch.messages, [b"".join(run.parts) for run in batch.runs]),
        {key: (queue.next_offset, bytes(queue.tail), len(queue.hot)) for key, queue in packer._queues.items()},
    )


def test_the_fast_way_packs_the_same_bytes_as_the_way_for_any_record(packer, message):
    entries = [message(queue_id=number // 2 % 2, head=bytes([number]) * 300, tag=-number) for number in range(30)]
    other = Packer({}, segment_bytes=SEGMENT_BYTES, end=0)
    batch = packer.pack(entries, 77, 0)
    offsets = [(entry.queue_offset, entry.log_offset) for entry in entries]
    assert [run.seals for run in batch.runs] == [True] * (len(batch.runs) - 1) + [False]
    mixed = other.pack_mixed(entries, (), (), b"", 77, 0)
    assert [(entry.queue_offset, entry.log_offset) for entry in entries] == offsets
    assert [b"".join(run.parts) for run in batch.runs] == [b"".join(run.parts) for run in mixed.runs]
    assert (packer.end, list(batch.touched.values())) == (other.end, list(mixed.touched.values()))
    for key, queue in packer._queues.items():
        assert queue.tail == other._queues[key].tail
        assert queue.hot == other._queues[key].hot
        assert [entry.queue_offset for entry in queue.hot] == list(range(queue.next_offset))


def test_every_header_has_the_epoch_of_the_leader(message):
    packer = Packer({}, segment_bytes=SEGMENT_BYTES, end=0, epoch=1 << 40)
    block = AppendBlock(
        1, b"block", 0, queue_ids=[0], tag_hashes=[0], born_ms=[0], head_bytes=[5], system_bytes=[0]
    )  # fmt: skip
    packer.pack([message(bytes(1_000)) for _ in range(4)], 5, 0)
    packer.pack_state(b"alone", 5, 0)
    batch = packer.pack_mixed([message(), message()], [timer()], [7], b"state", 5, 0, [block])
    found = frames(batch)
    assert {frame.kind for frame in found} == {MESSAGE, PADDING, STATE, TIMER, TIMER_END}
    assert {frame.epoch for frame in found} == {1 << 40}


def test_groups_that_are_in_the_log_keep_their_places_when_the_one_behind_them_goes(packer, message):
    packer.pack([message(b"a"), message(b"b", queue_id=1)], 5, 0)
    first = packer.take()
    packer.pack([message(b"c")], 5, 0)
    second = packer.take()
    end = packer.end
    packer.pack([message(b"lost"), message(b"lost", queue_id=1), message(b"lost", queue_id=2)], 5, 0)
    third = packer.take()
    packer.pack([message(b"lost too")], 5, 0)
    assert packer.take_back(third, [first, second])[0] is third
    assert packer.end == end
    again = [message(b"d"), message(b"e", queue_id=1), message(b"f", queue_id=2)]
    packer.pack(again, 5, 0)
    assert [entry.queue_offset for entry in again] == [2, 1, 0]
    assert again[0].log_offset == end
    assert [entry.head for entry in packer._queues[1, 0].hot] == [b"a", b"c", b"d"]


def test_messages_of_one_call_hang_together_in_the_log(packer, message):
    packer.pack([message(b"a"), message(b"b", queue_id=1)], 5, 0)
    batch = packer.pack([message(b"c")], 6, 40)
    found = frames(batch)
    assert [(frame.flags, frame.head, frame.store_ms, frame.synced_offset) for frame in found] == [
        (1, b"a", 5, 0), (0, b"b", 5, 0), (0, b"c", 6, 40)
    ]  # fmt: skip
    assert message_of(found[2]).queue_offset == 1
    assert {queue.queue_id: end for queue, end in batch.touched.items()} == {0: 2, 1: 1}
    assert (batch.messages, batch.records, batch.bytes) == (3, 3, packer.end)


def test_a_full_file_is_padded_to_its_end_and_the_next_one_begun(packer, message):
    batch = packer.pack([message(bytes(1_000)) for _ in range(4)], 5, 0)
    assert [run.start for run in batch.runs] == [0, SEGMENT_BYTES]
    assert frames(batch)[3].log_offset + frames(batch)[3].size == SEGMENT_BYTES
    assert [frame.kind for frame in frames(batch)] == [MESSAGE] * 3 + [PADDING] + [MESSAGE]


def test_every_kind_of_record_goes_in_the_order_of_the_call(packer, message):
    packer.pack_state(b"first", 4, 0)
    batch = packer.pack_mixed([message()], [timer(kind=3)], [11, 12], b"state", 5, 0)
    found = frames(batch)
    assert [frame.kind for frame in found] == [STATE, MESSAGE, TIMER, TIMER_END, STATE]
    assert [frame.flags & 1 for frame in found] == [0, 1, 1, 1, 0]
    assert (batch.messages, batch.timers, batch.states) == (1, 2, 2)
    assert [tuple(ended) for _, ended in batch.timer_changes] == [(11, 12)]


@pytest.mark.parametrize("before", [False, True])
@pytest.mark.parametrize(
    ("bad", "kind"),
    [({"topic_id": -1}, BadRequest), ({"head": bytes(5_000)}, BodyTooLarge), ({"tag": 1 << 64}, BadRequest),
     ({"head": "text"}, BadRequest)],
)  # fmt: skip
def test_a_call_that_cannot_be_packed_leaves_everything_as_it_was(packer, message, before, bad, kind):
    packer.pack([message(queue_id=queue_id) for queue_id in (0, 1)], 5, 0)
    if not before:
        packer.take()
    was = everything(packer)
    good = [message(bytes(1_000), queue_id=number // 2 % 2) for number in range(9)]  # over the end of a file
    with pytest.raises(kind):
        packer.pack([*good, message(**bad)], 6, 0)
    assert everything(packer) == was
    assert {(entry.queue_offset, entry.log_offset, entry.store_ms) for entry in good} == {(-1, -1, -1)}
    with pytest.raises(kind):
        packer.pack_mixed([*good, message(**bad)], [timer()], [1], b"state", 6, 0)
    assert everything(packer) == was
    assert packer.pack(good[:1], 7, 0).start == (0 if before else was[0])
    assert good[0].queue_offset == 1


def test_stale_places_of_an_earlier_refusal_do_not_confuse_a_later_one(packer, message):
    packer.pack([message()], 5, 0)
    packer.take()
    packer._queues[1, 0].max_offset = 1
    stale = [message(bytes(1_500)) for _ in range(3)]
    packer.pack(stale, 6, 0)
    packer.take_back(packer.take())
    was = everything(packer)
    with pytest.raises(BadRequest):
        packer.pack([message(topic_id=-1), *stale], 7, 0)
    assert everything(packer) == was


def test_a_timer_that_cannot_be_packed_takes_its_whole_group_along(packer, message):
    packer.pack([message()], 5, 0)
    was = everything(packer)
    entry, first = message(), timer(bytes(3_900))
    with pytest.raises(BadRequest, match=r"kind is 256, it must be 0\.\.255"):
        packer.pack_mixed([entry], [first, timer(kind=256)], [1], b"", 6, 0)
    assert everything(packer) == was
    assert (entry.log_offset, first.log_offset, first.store_ms) == (-1, -1, -1)


def test_a_group_that_found_no_room_gives_its_places_back_with_those_behind_it(packer, message):
    packer.pack([message(b"kept")], 5, 0)
    packer.take()
    packer._queues[1, 0].max_offset = 1  # as the writer's report does
    was = everything(packer)
    packer.pack([message(bytes(1_500), queue_id=number % 2) for number in range(6)], 6, 0)
    refused = packer.take()
    packer.pack([message(b"behind")], 7, 0)
    packer.pack_mixed([message(b"too", queue_id=1)], [timer()], [], b"", 7, 0)
    behind = packer.batch
    assert packer.take_back(refused) == [refused, behind]
    end, batch, queues = everything(packer)
    assert (end, batch) == was[:2]
    assert queues == {(1, 0): was[2][1, 0], (1, 1): (0, b"", 0)}
    assert frames(packer.pack([message(b"next")], 8, 0))[0].log_offset == was[0]


def test_places_go_on_behind_a_log_that_ends_with_a_file(message):
    packer = Packer({}, segment_bytes=SEGMENT_BYTES, end=SEGMENT_BYTES)
    batch = packer.pack([message()], 5, 0)
    assert [(run.start, run.position) for run in batch.runs] == [(SEGMENT_BYTES, 0)]


def block_of(entries):
    """The same messages as one piece, behind five bytes that are not theirs."""
    return AppendBlock(
        entries[0].topic_id, b"12345" + b"".join(entry.head + entry.system for entry in entries), 5,
        queue_ids=[entry.queue_id for entry in entries], tag_hashes=[entry.tag_hash for entry in entries],
        born_ms=[entry.born_ms for entry in entries], head_bytes=[len(entry.head) for entry in entries],
        system_bytes=[len(entry.system) for entry in entries],
    )  # fmt: skip


def test_a_block_is_packed_as_its_messages_would_be_and_is_not_kept_in_memory(packer, message):
    entries = [message(queue_id=number // 3 % 2, head=bytes([number]) * 300, tag=-number) for number in range(30)]
    other = Packer({}, segment_bytes=SEGMENT_BYTES, end=0)
    for one in (packer, other):
        one.pack([message(b"first")], 5, 0)
    blocks = [block_of(entries[:20]), block_of(entries[20:])]
    packed = packer.pack_mixed((), (), (7,), b"state", 77, 3, blocks)
    wanted = other.pack_mixed(entries, (), (7,), b"state", 77, 3)
    assert len(packed.runs) > 2
    assert [(run.start, run.seals, b"".join(run.parts)) for run in packed.runs] == [
        (run.start, run.seals, b"".join(run.parts)) for run in wanted.runs
    ]
    assert (packer.end, packed.end, packed.records, list(packed.touched.values())) == (
        other.end, wanted.end, wanted.records, list(wanted.touched.values())
    )  # fmt: skip
    assert packed.cold_bytes == sum(88 + len(entry.head) + len(entry.system) for entry in entries)
    for key, queue in packer._queues.items():
        assert queue.tail == other._queues[key].tail
        assert (queue.hot, queue.hot_base, queue.next_offset) == ([], queue.next_offset, other._queues[key].next_offset)


@pytest.mark.parametrize("fails", ["state", "timer", "message", "state after messages", "timer after messages"])
def test_a_call_with_blocks_that_cannot_be_packed_leaves_nothing(packer, message, fails):
    packer.pack([message(b"first"), message(b"second", queue_id=1)], 5, 0)
    before = everything(packer)
    entries = [message(queue_id=number % 3, head=bytes(500)) for number in range(20)]
    same = [message(queue_id=queue_id) for queue_id in (0, 0, 2)]  # in queues of the block
    more = {
        "state": ((), (), bytes(SEGMENT_BYTES)), "timer": ((), [timer(kind=300)], b""),
        "message": ([message(b"", tag=1 << 80)], (), b""),
        "state after messages": (same, (), bytes(SEGMENT_BYTES)), "timer after messages": (same, [timer(kind=300)], b""),
    }[fails]  # fmt: skip
    with pytest.raises(BadRequest):
        packer.pack_mixed(more[0], more[1], (1,), more[2], 6, 0, [block_of(entries)])
    end, batch, queues = everything(packer)
    assert (end, batch) == before[:2]
    assert {key: queue[:2] for key, queue in queues.items() if queue[0]} == {
        key: queue[:2] for key, queue in before[2].items()
    }
    found = frames(packer.pack_mixed((), (), (1,), b"", 7, 0, [block_of(entries[:2])]))
    assert [frame.queue_offset for frame in found] == [0, 0, 1, 1, 0]


@pytest.mark.parametrize("change", ["short", "empty", "large"])
def test_a_block_whose_sizes_make_no_sense_is_refused_before_anything_is_packed(packer, message, change):
    block = block_of([message(bytes(5_000 if change == "large" else 100))])
    if change == "short":
        block.data = block.data[:-1]
    elif change == "empty":
        block = AppendBlock(
            1, b"", 0, queue_ids=[], tag_hashes=[], born_ms=[], head_bytes=[], system_bytes=[]
        )  # fmt: skip
    with pytest.raises(BadRequest, match="file size" if change == "large" else "sizes of its messages add up to"):
        packer.pack_mixed((), (), (1,), b"", 6, 0, [block])
    assert everything(packer)[0] == 0
    assert not packer._queues


def test_a_large_part_is_not_copied_and_a_call_that_is_taken_back_leaves_it_whole(message):
    packer = Packer({}, segment_bytes=1 << 20, end=0)

    def large(kind=1):
        return TimerAppend(1, 2, 7, due_ms=9_000, kind=kind, born_ms=5, head=b"h", system=bytes(range(256)) * 256)

    kept = large()
    assert len(kept.system) == LARGE_BYTES
    batch = packer.pack_mixed([message()], [kept], (), b"", 5, 0)
    assert any(part is kept.system for part in batch.runs[0].parts)
    was = everything(packer)
    for bad in ([large(), large(kind=300)], [timer(), large(), large(kind=300)]):
        with pytest.raises(BadRequest):
            packer.pack_mixed([message()], bad, (), b"", 6, 0)
        assert everything(packer) == was
    packer.pack_state(b"s", 7, 0)
    assert [frame.kind for frame in frames(batch)] == [MESSAGE, TIMER, STATE]
    assert frames(batch)[1].system == kept.system
