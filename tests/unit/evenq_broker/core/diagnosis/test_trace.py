"""What the broker remembers of deliveries, and for how long."""

from evenq_broker.core.diagnosis.trace import Story, Trace, TraceEvent, TraceEventKind
from evenq_broker.core.state.records import Acked, Committed, Delivered, Invisible, Op, encode


def delivered(offset: int = 7, *, number: int = 1, attempt: int = 1, client: str = "", until: int = 500) -> Delivered:
    return Delivered(1, 2, 3, offset + 1, until, client, (offset,), (number,), (attempt,))


def events_of(*records: tuple[int, bytes]) -> list[TraceEvent]:
    story = Story(2, 3, 7)
    for at_ms, record in records:
        story.read(at_ms, record)
    return story.events()


def test_a_delivery_and_its_ack_are_told_with_the_client_that_the_journal_leaves_out() -> None:
    trace = Trace(1 << 20, now_ms=5)
    trace.taken(10, "me", 1, 2, [(3, 7, 1), (3, 8, 1)])
    trace.add(10, encode([delivered(), delivered(8)]))
    trace.add(20, encode([Invisible(1, 2, 3, 7, 1, 1, 30)]))
    trace.add(40, encode([delivered(number=2, attempt=2, client="push"), Acked(1, 2, 3, 8)]))
    trace.add(50, encode([Acked(1, 2, 3, 7)]))
    seen = events_of(*trace.entries())
    assert [(one.at_ms, one.kind, one.client_id, one.attempt) for one in seen] == [
        (10, TraceEventKind.DELIVERED, "me", 1),
        (20, TraceEventKind.INVISIBLE, "", 1),
        (40, TraceEventKind.DELIVERED, "push", 2),
        (50, TraceEventKind.ACKNOWLEDGED, "", 0),
    ]
    assert (trace.forgotten_ms, seen[0].until_ms) == (5, 500)


def test_other_messages_queues_and_topics_are_left_out() -> None:
    others: list[Op] = [
        Acked(1, 2, 3, 8),
        Acked(1, 2, 4, 7),
        Acked(1, 9, 3, 7),
        delivered(9),
        Invisible(1, 2, 4, 7, 1, 1, 0),
    ]
    assert events_of((1, encode(others))) == []
    trace = Trace(1 << 20, now_ms=0)
    trace.taken(1, "c", 1, 9, [(3, 7, 1)])
    assert events_of(*trace.entries(), (2, encode([delivered()])))[0].client_id == ""


def test_what_waits_behind_its_message_group_was_not_delivered() -> None:
    assert events_of((1, encode([delivered(number=0, attempt=0, until=0)]))) == []


def test_a_member_with_offsets_of_its_own_passes_a_message_once() -> None:
    commits = [(at, encode([Committed(1, 2, 3, offset)])) for at, offset in enumerate((5, 7, 8, 9))]
    assert [(one.at_ms, one.kind) for one in events_of(*commits)] == [(2, TraceEventKind.COMMITTED)]
    assert events_of((1, encode([Committed(1, 2, 3, 9)]))) == [], "it may have passed long ago"
    reset = events_of((1, encode([Committed(1, 2, 3, 0, reset=True)])))
    assert [one.kind for one in reset] == [TraceEventKind.RESET]


def test_the_memory_is_bounded_and_says_what_it_forgot() -> None:
    trace = Trace(1_000, now_ms=0)
    for number in range(100):
        trace.add(number, b"x" * 80)
    assert len(trace) == 5
    assert trace.forgotten_ms == 94
    assert [at_ms for at_ms, _ in trace.entries()] == [95, 96, 97, 98, 99]


def test_a_follower_reads_from_its_position_and_sees_how_much_it_missed() -> None:
    trace = Trace(1_000, now_ms=0)
    for number in range(3):
        trace.add(number, b"x" * 80)
    assert [at_ms for at_ms, _ in trace.since(1)] == [1, 2]
    assert trace.since(trace.added) == []
    for number in range(3, 10):
        trace.add(number, b"x" * 80)
    assert (trace.added, [at_ms for at_ms, _ in trace.since(3)]) == (10, [5, 6, 7, 8, 9])
