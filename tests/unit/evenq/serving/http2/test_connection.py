"""The protocol core without a network: any split of the input, any bytes, each flood."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evenq.serving.http2.connection import Connection
from evenq.serving.http2.events import ConnectionEnded, DataReceived, Event, RequestStarted, StreamEnded, StreamReset
from evenq.serving.http2.limits import Http2Limits, Totals
from evenq.wire.http2 import frames as f
from evenq.wire.http2.codes import ErrorCode
from evenq.wire.http2.hpack import encode

HELLO = f.PREFACE + f.settings({})
REQUEST = encode([
    (b":method", b"POST"), (b":scheme", b"http"), (b":path", b"/s/M"), (b":authority", b"h"),
    (b"content-type", b"application/grpc"), (b"te", b"trailers"),
])  # fmt: skip
HEADERS = f.END_HEADERS
LAST = f.END_HEADERS | f.END_STREAM
SMALL = Http2Limits(
    frame_bytes_max=16_384, stream_window_bytes=70_000, connection_window_bytes=100_000, header_block_bytes_max=8_192,
    header_list_bytes_max=1_024, header_fields_max=40, continuations_max=4, streams_per_connection_max=8, flood_burst=20,
    resets_burst=16, empty_data_burst=10, settings_burst=8,
)  # fmt: skip


def connection(limits: Http2Limits = SMALL) -> Connection:
    return Connection(limits, Totals(), 0)


def greeted(limits: Http2Limits = SMALL) -> Connection:
    made = connection(limits)
    assert made.receive(HELLO, 0) == []
    made.take(1 << 20)
    return made


def headers(stream_id: int, flags: int = HEADERS, block: bytes = REQUEST) -> bytes:
    return f.frame(f.HEADERS, flags, stream_id, block)


def data(stream_id: int, payload: bytes, flags: int = 0) -> bytes:
    return f.frame(f.DATA, flags, stream_id, payload)


def shown(events: Sequence[Event]) -> list[tuple[Any, ...]]:
    """Events as values; DATA of one stream in a row as one."""
    out: list[tuple[Any, ...]] = []
    for event in events:
        match event:
            case RequestStarted():
                out.append(
                    (
                        "request",
                        event.stream.id,
                        tuple(x.pair for x in event.block.fields + event.block.changing),
                        event.ended,
                    )
                )
            case DataReceived():
                out.append(("data", event.stream.id, event.data, event.ended))
            case StreamReset():
                out.append(("reset", event.stream.id, event.code))
            case StreamEnded():
                out.append(("ended", event.stream.id))
            case ConnectionEnded():
                out.append(("over", event.code))
            case _:
                out.append((type(event).__name__,))
    return out


def frames(output: bytes) -> list[tuple[int, int, int, bytes]]:
    """Type, flags, stream and payload of each frame."""
    out, position = [], 0
    while position < len(output):
        high, low, kind, flags, stream_id = f.HEADER.unpack_from(output, position)
        position += f.HEADER_BYTES + (high << 8 | low)
        out.append((kind, flags, stream_id, output[position - (high << 8 | low) : position]))
    assert position == len(output)
    return out


def ended_with(made: Connection, output: bytes) -> ErrorCode:
    kind, _, _, payload = frames(output)[-1]
    assert kind == f.GOAWAY
    assert made.ended
    return ErrorCode(int.from_bytes(payload[4:8], "big"))


STREAM_IDS = st.sampled_from([0, 1, 2, 3, 5, 7, 9, 0x7FFFFFFF])
FRAME = st.one_of(
    st.builds(headers, STREAM_IDS, st.sampled_from([HEADERS, LAST, 0, LAST | f.PADDED, HEADERS | f.PRIORITY])),
    st.builds(headers, STREAM_IDS, st.just(LAST), st.binary(max_size=40)),
    st.builds(data, STREAM_IDS, st.binary(max_size=50), st.sampled_from([0, 1, f.PADDED, f.PADDED | 1])),
    st.builds(f.frame, st.integers(0, 12), st.integers(0, 255), STREAM_IDS, st.binary(max_size=30)),
    st.builds(f.window_update, STREAM_IDS, st.sampled_from([0, 1, 1000, f.WINDOW_MAX])),
    st.builds(f.reset, STREAM_IDS, st.sampled_from(ErrorCode)),
    st.builds(f.settings, st.dictionaries(st.integers(0, 8), st.sampled_from([0, 1, 16_384, f.WINDOW_MAX]))),
    st.builds(f.frame, st.just(f.CONTINUATION), st.sampled_from([0, HEADERS]), STREAM_IDS, st.just(REQUEST)),
)


@given(st.lists(FRAME, max_size=30), st.lists(st.integers(1, 60), max_size=40))
@settings(max_examples=300)
@pytest.mark.slow
def test_how_the_input_is_split_changes_nothing(parts: list[bytes], cuts: list[int]) -> None:
    stream = HELLO + b"".join(parts)
    whole, split = connection(), connection()
    expected = shown(whole.receive(stream, 0))
    events, position = [], 0
    for cut in [*cuts, len(stream)]:
        events += split.receive(stream[position : position + cut], 0)
        position += cut
    assert shown(events) == expected
    assert split.take(1 << 20) == whole.take(1 << 20)
    assert split.streams.keys() == whole.streams.keys()


@given(st.lists(st.binary(max_size=100) | FRAME, max_size=40), st.booleans())
@settings(max_examples=300)
@pytest.mark.slow
def test_any_bytes_end_in_typed_errors_and_bounded_memory(parts: list[bytes], polite: bool) -> None:
    made = greeted() if polite else connection()
    for part in parts:
        made.receive(part, 0)
        assert len(made.streams) <= SMALL.streams_per_connection_max
        assert made.kept_bytes <= max(SMALL.frame_bytes_max + f.HEADER_BYTES, SMALL.header_block_bytes_max)
        frames(made.take(1 << 20))
    open_streams = made.totals.streams
    assert open_streams == len(made.streams)
    made.release()
    assert made.totals.streams == made.totals.unread_bytes == 0


def test_a_request_comes_with_its_fields_and_data_and_is_answered() -> None:
    made = greeted()
    events = made.receive(headers(1) + data(1, b"abc", f.END_STREAM), 5)
    assert [type(event) for event in events] == [RequestStarted, DataReceived]
    stream = made.streams[1]
    made.respond(stream, f.EncodedHeaders(b"\x88"), b"answer", f.EncodedHeaders(b"\x8d"))
    assert frames(made.take(1 << 20)) == [
        (f.HEADERS, f.END_HEADERS, 1, b"\x88"),
        (f.DATA, 0, 1, b"answer"),
        (f.HEADERS, LAST, 1, b"\x8d"),
    ]
    assert not made.streams


def test_an_early_answer_tells_the_peer_to_send_no_more_and_forgives_what_is_on_its_way() -> None:
    made = greeted()
    made.receive(headers(1), 0)
    made.respond(made.streams[1], f.EncodedHeaders(b"\x88"), b"no", f.EncodedHeaders(b"\x8d"))
    assert frames(made.take(1 << 20))[-1] == (f.RST_STREAM, 0, 1, bytes(4))
    assert made.receive(data(1, b"late", f.END_STREAM) + headers(1, LAST) + headers(3), 0) != []
    assert not made.ended


def test_padding_and_priority_are_read_over() -> None:
    made = greeted()
    padded = f.frame(f.HEADERS, LAST | f.PADDED | f.PRIORITY, 1, b"\x03" + bytes(4) + b"\x10" + REQUEST + bytes(3))
    assert shown(made.receive(padded, 0))[0][1:] == (1, shown(greeted().receive(headers(1), 0))[0][2], True)
    made.receive(headers(3), 0)
    events = made.receive(f.frame(f.DATA, f.PADDED, 3, b"\x02xy\0\0"), 0)
    assert shown(events) == [("data", 3, b"xy", False)]


def test_a_header_block_in_pieces_is_one() -> None:
    made = greeted()
    pieces = headers(1, f.END_STREAM, REQUEST[:5]) + f.frame(f.CONTINUATION, 0, 1, REQUEST[5:9])
    assert made.receive(pieces, 0) == []
    assert shown(made.receive(f.frame(f.CONTINUATION, HEADERS, 1, REQUEST[9:]), 0))[0][3] is True


def test_one_stream_more_than_the_maximum_is_refused_and_its_fields_enter_the_tables() -> None:
    made = greeted()
    for number in range(8):
        made.receive(headers(2 * number + 1), 0)
    with_insert = REQUEST + b"\x40\x01n\x01v"
    assert made.receive(headers(17, HEADERS, with_insert), 0) == []
    assert frames(made.take(1 << 20))[-1] == (f.RST_STREAM, 0, 17, ErrorCode.REFUSED_STREAM.to_bytes(4, "big"))
    made.receive(f.reset(1, ErrorCode.CANCEL), 0)
    (event,) = made.receive(headers(19, HEADERS, REQUEST + b"\xbe"), 0)
    assert shown([event])[0][2][-1] == ("n", "v")


@given(
    st.lists(st.integers(0, 40_000), min_size=1, max_size=6),
    st.lists(st.tuples(st.integers(0, 6), st.integers(1, 30_000)), max_size=40),
    st.integers(0, 70_000),
)
@pytest.mark.slow
def test_data_stays_within_both_windows_and_arrives_whole_and_in_order(
    sizes: list[int], updates: list[tuple[int, int]], window: int
) -> None:
    made = connection()
    made.receive(f.PREFACE + f.settings({f.INITIAL_WINDOW_SIZE: window}), 0)
    total, each = 65_535, {}
    for number, size in enumerate(sizes):
        stream_id = 2 * number + 1
        made.receive(headers(stream_id, LAST), 0)
        stream = made.streams[stream_id]
        made.send_headers(stream, f.EncodedHeaders(b"\x88"))
        body = bytes((number,)) * size
        for start in range(0, size, 7_000):
            made.send_data(stream, body[start : start + 7_000], b"")
        made.send_end(stream, f.EncodedHeaders(b"\x8d"))
        each[stream_id] = [window, body, b""]
    for which, increment in [*updates, *((number, 300_000) for number in range(7))]:
        for kind, _, stream_id, payload in frames(made.take(1 << 20)):
            if kind == f.DATA:
                total -= len(payload)
                each[stream_id][0] -= len(payload)
                each[stream_id][2] += payload
                assert total >= 0
                assert each[stream_id][0] >= 0
                assert len(payload) <= 16_384
        stream_id = 2 * which - 1
        if which == 0:
            total += increment
        elif stream_id in each:
            each[stream_id][0] += increment
        if which == 0 or stream_id in each:
            made.receive(f.window_update(max(0, stream_id), increment), 0)
        assert made.unread_bytes == sum(stream.queued_bytes for stream in made.streams.values())
    for kind, _, stream_id, payload in frames(made.take(1 << 20)):
        if kind == f.DATA:
            each[stream_id][2] += payload
    assert [sent for _, _, sent in each.values()] == [body for _, body, _ in each.values()]
    assert not made.streams
    assert made.totals.unread_bytes == 0


def test_our_windows_are_given_back_in_large_steps_unless_they_are_withheld() -> None:
    made = greeted()
    made.receive(headers(1), 0)
    sent = 0
    for _ in range(4):
        for event in made.receive(data(1, bytes(16_000)), 0):
            assert isinstance(event, DataReceived)
            made.consumed(event.stream, len(event.data))
        sent += 16_000
    updates = [(stream_id, int.from_bytes(payload, "big")) for _, _, stream_id, payload in frames(made.take(1 << 20))]
    assert updates == [(1, 48_000), (0, 64_000)]
    made.withhold = True
    made.receive(data(1, bytes(16_000)) * 2, 0)
    assert frames(made.take(1 << 20)) == []
    assert ended_with(made, _output(made, data(1, bytes(16_000)) * 5)) is ErrorCode.FLOW_CONTROL_ERROR


def _output(made: Connection, received: bytes, now_ms: int = 0) -> bytes:
    made.receive(received, now_ms)
    return made.take(1 << 20)


def _reset(number: int) -> bytes:
    return headers(2 * number + 1) + f.reset(2 * number + 1, ErrorCode.CANCEL)


FLOODS = {
    "rapid reset": _reset,
    "SETTINGS": lambda _: f.settings({f.INITIAL_WINDOW_SIZE: 1}),
    "SETTINGS acknowledged": lambda _: f.frame(f.SETTINGS, f.ACK, 0),
    "PING": lambda _: f.ping(bytes(8)),
    "PING acknowledged": lambda _: f.ping(bytes(8), ack=True),
    "empty DATA": lambda number: headers(1) if number == 0 else data(1, b""),
    "WINDOW_UPDATE of nothing": lambda _: f.window_update(0, 1),
    "PRIORITY": lambda number: f.frame(f.PRIORITY_FRAME, 0, 2 * number + 1, bytes(5)),
    "unknown frames": lambda _: f.frame(0xEE, 0, 0, b"x"),
    "GOAWAY": lambda _: f.go_away(0, ErrorCode.NO_ERROR),
    "CONTINUATION": lambda number: headers(1, 0) if number == 0 else f.frame(f.CONTINUATION, 0, 1, b""),
    "streams that are refused": lambda number: headers(2 * number + 1),
    "malformed requests": lambda number: headers(2 * number + 1) + data(2 * number + 1, b"", 1) * 2,
    "header bomb": lambda number: headers(2 * number + 1, LAST, REQUEST + b"\x40\x01n\x7f\x81\x06" + b"v" * 896 + b"\xbe" * 8),
    "many fields": lambda number: headers(2 * number + 1, LAST, REQUEST + b"\x82" * 60),
    "long block": lambda number: headers(2 * number + 1, LAST, b"\x00\x01n\x7f\x81\x7e" + b"v" * 16_256),
}  # fmt: skip


@pytest.mark.parametrize("kind", FLOODS)
def test_a_flood_ends_the_connection(kind: str) -> None:
    made = greeted()
    for number in range(200):
        output = _output(made, FLOODS[kind](number))
        if made.ended:
            break
    assert ended_with(made, output) is ErrorCode.ENHANCE_YOUR_CALM
    assert made.receive(headers(999), 0) == []


@pytest.mark.parametrize("kind", ["rapid reset", "PING", "WINDOW_UPDATE of nothing", "PRIORITY", "empty DATA"])
def test_the_same_frames_at_leisure_are_no_flood(kind: str) -> None:
    made = greeted()
    for number in range(200):
        _output(made, FLOODS[kind](number), number * 1_000)
    assert not made.ended


def test_pings_and_updates_that_our_answers_call_for_are_no_flood() -> None:
    made = greeted()
    for number in range(300):
        stream_id = 2 * number + 1
        made.receive(headers(stream_id, LAST), 0)
        made.respond(made.streams[stream_id], f.EncodedHeaders(b"\x88"), bytes(100), f.EncodedHeaders(b"\x8d"))
        made.take(1 << 20)
        made.receive(f.ping(bytes(8)) + f.window_update(0, 100) * 3, 0)
    assert not made.ended


def test_windows_of_new_streams_are_no_flood_though_none_is_answered_yet() -> None:
    made = connection(replace(SMALL, streams_per_connection_max=200))
    made.receive(HELLO, 0)
    for number in range(100):
        made.receive(headers(2 * number + 1, LAST) + f.window_update(2 * number + 1, 100) + f.window_update(0, 100), 0)
    assert not made.ended
    assert len(made.streams) == 100


def test_windows_that_a_long_answer_calls_for_are_no_flood() -> None:
    made = greeted()
    made.receive(headers(1, LAST) + f.window_update(0, 1 << 24) + f.window_update(1, 1 << 24), 0)
    made.send_data(made.streams[1], bytes(1 << 20))
    made.take(1 << 21)
    for _ in range(200):
        made.receive(f.window_update(0, 8_192), 0)
    assert not made.ended


@pytest.mark.parametrize(
    ("received", "code"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", ErrorCode.PROTOCOL_ERROR),
        (f.PREFACE + f.ping(bytes(8)), ErrorCode.PROTOCOL_ERROR),
        (f.PREFACE + headers(1), ErrorCode.PROTOCOL_ERROR),
        (HELLO + headers(2), ErrorCode.PROTOCOL_ERROR),
        (HELLO + headers(5, LAST) + headers(3, LAST), ErrorCode.PROTOCOL_ERROR),
        (HELLO + headers(1, LAST, b"\xff\xff\xff\xff\xff\xff"), ErrorCode.COMPRESSION_ERROR),
        (HELLO + headers(1, 0) + headers(3), ErrorCode.PROTOCOL_ERROR),
        (HELLO + f.HEADER.pack(0xFFFF, 0, f.DATA, 0, 1), ErrorCode.FRAME_SIZE_ERROR),
        (HELLO + f.frame(f.PUSH_PROMISE, 0, 1, bytes(4)), ErrorCode.PROTOCOL_ERROR),
        (HELLO + f.settings({f.INITIAL_WINDOW_SIZE: 1 << 31}), ErrorCode.FLOW_CONTROL_ERROR),
        (HELLO + f.settings({f.MAX_FRAME_SIZE: 1}), ErrorCode.PROTOCOL_ERROR),
        (HELLO + data(0, b"x"), ErrorCode.PROTOCOL_ERROR),
    ],
)
def test_a_fault_of_the_connection_is_named_in_goaway(received: bytes, code: ErrorCode) -> None:
    made = connection()
    events = made.receive(received, 0)
    assert ended_with(made, made.take(1 << 20)) is code
    assert shown(events)[-1] == ("over", code)


def test_a_drain_serves_what_came_and_refuses_what_comes() -> None:
    made = greeted()
    made.receive(headers(1), 0)
    made.draining_after = 1
    assert made.receive(headers(3), 0) == []
    assert frames(made.take(1 << 20))[-1][0] == f.RST_STREAM
    assert shown(made.receive(data(1, b"x", f.END_STREAM), 0)) == [("data", 1, b"x", True)]


def test_a_turn_reads_so_many_frames_and_the_rest_in_its_order_later() -> None:
    limits = replace(SMALL, frames_per_turn=5)
    given = b"".join(headers(number) + data(number, b"x", f.END_STREAM) for number in range(1, 15, 2)) + b"\0\0"
    whole, parts = greeted(replace(SMALL, frames_per_turn=100)), greeted(limits)
    expected = shown(whole.receive(given, 0))
    assert not whole.pending
    seen = [parts.receive(given, 0)]
    while parts.pending:
        seen.append(parts.receive(b"", 0))
    assert [len(events) for events in seen] == [5, 5, 4]
    assert parts.frames_read == 4
    assert shown([event for events in seen for event in events]) == expected
    assert parts.kept_bytes == 2
    parts.receive(b"\0" * 6 + f.ping(b"12345678"), 0)
    assert not parts.pending


def test_more_may_come_while_there_is_more() -> None:
    made = greeted(replace(SMALL, frames_per_turn=1))
    made.receive(f.ping(b"1" * 8) + f.ping(b"2" * 8), 0)
    assert made.pending
    made.receive(f.ping(b"3" * 8), 0)
    made.receive(b"", 0)
    assert not made.pending
    assert [frame[3] for frame in frames(made.take(1 << 20))] == [b"1" * 8, b"2" * 8, b"3" * 8]


CALL = st.builds(
    lambda stream_id, other, payload, flags: headers(stream_id) + data(other or stream_id, payload, flags),
    st.integers(0, 24), st.sampled_from([0, 0, 0, 0, 3, 5]),
    st.one_of(st.binary(max_size=20), st.sampled_from([bytes(16_384), bytes(16_385), bytes(60_000)])),
    st.sampled_from([f.END_STREAM, f.END_STREAM, f.END_STREAM, 0, f.END_STREAM | f.PADDED, 0x41]),
)  # fmt: skip
LENGTH = REQUEST + encode([(b"content-length", b"7")])
LATE = [b"\x20" + REQUEST + encode([(b"grpc-timeout", b"%du" % left), (b"x", b"y")]) for left in range(9)]
"""Differ by their deadlines, from a client that has no table."""
LATE[6:] = [LATE[6] + encode([(b"n", b"7" * 5_000)]), LATE[7][:-1], LATE[8] + encode([(b"content-length", b"3")])]
LATE_CALL = st.builds(
    lambda stream_id, block: headers(stream_id, block=block) + data(stream_id, b"x", f.END_STREAM),
    st.integers(0, 24), st.sampled_from(LATE),
)  # fmt: skip
LONG = [b"\x20" + encode([(b"n", b"7" * size), (b"grpc-timeout", b"%dS" % size)]) for size in (900, 900, 901)]


def in_one_step(events: Sequence[Event]) -> list[tuple[Any, ...]]:
    """As values, a request and the data that ends it as one."""
    out: list[tuple[Any, ...]] = []
    for event in events:
        value = (*shown([event])[0], event.data if isinstance(event, RequestStarted) else b"")
        if value[0] == "data" and value[3] and out and out[-1] == (*out[-1][:1], value[1], *out[-1][2:3], False, b""):
            value = (*out.pop()[:3], True, value[2])
        out.append(value)
    return out


def both_ways(
    parts: Sequence[bytes], limits: Http2Limits, *, frames_max: int = 128, draining_after: int | None = None
) -> None:
    """What a connection tells, answers and remembers is the same with the one step and without it."""
    seen: list[list[Any]] = []
    for steps in (False, True):
        made = greeted(limits)
        calls: list[Any] = []
        if steps:
            made._on_usual_call = lambda *_: 0  # type: ignore[method-assign]
        for number, part in enumerate([headers(1) + data(1, b"first", f.END_STREAM), *parts]):
            made.frames_max = frames_max
            made.withhold = limits is WITHHOLDING
            if number == 1:
                made.draining_after = draining_after
            events = made.receive(part, 0)
            while made.pending:
                events += made.receive(b"", 0)
            for event in events:
                if isinstance(event, RequestStarted):
                    for block in filter(None, (event.block, event.block.common)):
                        block.request = made  # as the layer above does with blocks that it read
            calls += in_one_step(events)
            calls.append((made.take(1 << 20), made.last_stream_id, made.frames_read, made.ended))
            calls.append([(one.id, one.receiving, one.receive_left) for one in made.streams.values()])
            calls.append((made._receive_left, made._unannounced, made.opened))
        seen.append(calls)
    assert seen[0] == seen[1]


WITHHOLDING = replace(SMALL, connection_window_bytes=66_000, stream_window_bytes=60_000)


def call(stream_id: int, payload: bytes = b"abc", block: bytes = REQUEST) -> bytes:
    return headers(stream_id, block=block) + data(stream_id, payload, f.END_STREAM)


@pytest.mark.parametrize(("parts", "limits", "draining_after"), [
    ([call(3), call(5, b""), call(7) + call(9)], SMALL, None),
    ([headers(3) + f.frame(f.WINDOW_UPDATE, f.END_STREAM, 3, bytes((0, 0, 0, 9))), data(3, b"x", 1)], SMALL, None),
    ([headers(3) + data(3, b"x", f.END_STREAM)[:-1], b"x", call(5)[:12], call(5)[12:]], SMALL, None),
    ([call(3, bytes(16_384)), call(5, bytes(16_385))], SMALL, None),
    ([call(3, bytes(101))], replace(SMALL, stream_window_bytes=100), None),
    ([call(number, bytes(16_384)) for number in (3, 5, 7, 9, 11)], WITHHOLDING, None),
    ([call(number, bytes(16_384)) for number in (3, 5, 7, 9, 11)], SMALL, None),
    ([call(5), call(3)], SMALL, None),
    ([call(3), call(3)], SMALL, None),
    ([call(4)], SMALL, None),
    ([headers(3) + data(5, b"x", f.END_STREAM)], SMALL, None),
    ([headers(3) + data(1, b"x", f.END_STREAM)], SMALL, None),
    ([headers(3) + data(3, b"x"), data(3, b"y", f.END_STREAM)], SMALL, None),
    ([headers(3) + data(3, b"\x01xy", f.END_STREAM | f.PADDED)], SMALL, None),
    ([f.frame(f.PRIORITY_FRAME, 0, 9, b"1234"), call(9), call(11)], SMALL, None),
    ([call(number) for number in range(3, 23, 2)], SMALL, None),
    ([call(3), call(5)], SMALL, 3),
    ([call(3 + 2 * at, b"x", block) for at, block in enumerate(LATE)], SMALL, None),
    ([call(3 + 2 * at, b"x", LATE[at % 4]) for at in range(9)], replace(SMALL, header_list_bytes_max=100), None),
    ([call(3 + 2 * at, b"x", LATE[at % 4]) for at in range(9)], replace(SMALL, header_fields_max=3), None),
    ([call(3 + 2 * at, b"x", block) for at, block in enumerate(LONG)], replace(SMALL, header_list_bytes_max=250), None),
    ([call(3, b"seven b", LENGTH), call(5, b"seven b", LENGTH), call(7, b"six by", LENGTH)], SMALL, None),
])  # fmt: skip
def test_whatever_there_is_to_object_to_goes_frame_by_frame(
    parts: list[bytes], limits: Http2Limits, draining_after: int | None
) -> None:
    both_ways(parts, limits, draining_after=draining_after)


@given(st.lists(CALL | FRAME | LATE_CALL, max_size=12), st.integers(1, 40))
@settings(max_examples=300, deadline=None)
@pytest.mark.slow
def test_a_usual_call_is_the_same_in_one_step_as_frame_by_frame(parts: list[bytes], frames_max: int) -> None:
    both_ways(parts, replace(SMALL, streams_per_connection_max=4), frames_max=frames_max)


def test_a_call_with_a_block_that_came_before_is_one_event() -> None:
    made = greeted()
    first, asked = made.receive(headers(1) + data(1, b"abc", f.END_STREAM), 0)
    assert isinstance(first, RequestStarted)
    assert isinstance(asked, DataReceived)
    first.block.request = made
    (call,) = made.receive(headers(3) + data(3, b"def", f.END_STREAM), 0)
    assert isinstance(call, RequestStarted)
    assert (call.ended, call.data, call.stream.receiving) == (True, b"def", False)


def test_a_client_whose_deadlines_change_its_table_is_told_to_have_none() -> None:
    made, acknowledged = greeted(), f.frame(f.SETTINGS, f.ACK, 0)
    resized = b"\x3f\xe1\x1f"
    made.receive(headers(1, LAST, resized + REQUEST) + acknowledged, 0)
    assert made.take(1 << 20) == b""
    late = b"\x40\x0cgrpc-timeout\x021S"
    (started,) = made.receive(headers(3, LAST, REQUEST + late), 0)
    assert isinstance(started, RequestStarted)
    assert made.take(1 << 20) == f.settings({f.HEADER_TABLE_SIZE: 0})
    assert len(made.receive(headers(5, LAST, resized + REQUEST + late), 0)) == 1
    assert made.take(1 << 20) == b""
    assert made.receive(acknowledged, 0) == []
    assert len(made.receive(headers(7, LAST, b"\x20" + REQUEST + late), 0)) == 1
    (ended,) = made.receive(headers(9, LAST, b"\x21" + REQUEST), 0)
    assert isinstance(ended, ConnectionEnded)
    assert ended.code is ErrorCode.COMPRESSION_ERROR
