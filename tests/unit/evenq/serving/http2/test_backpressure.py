"""What a peer has not taken, against what its address and all peers may leave: counted in bytes, without a network."""

import pytest

from evenq.serving.http2.backpressure import WRITE_BYTES, WRITE_BYTES_PRESSED, Backpressure
from evenq.serving.http2.limits import SHARE_MIN, Http2Limits, PeerTotals, Totals
from evenq.serving.http2.sending import StreamSender
from evenq.serving.http2.streams import Http2Stream
from evenq.wire.http2 import frames as f

MESSAGE = bytes(32 << 10)
LIMITS = Http2Limits(address_unread_bytes=1 << 20, unread_bytes=4 << 20)


class Reader:
    """A connection whose peer takes nothing, unless the test says so."""

    def __init__(self, totals: Totals, peer: PeerTotals, limits: Http2Limits = LIMITS) -> None:
        self.core = StreamSender(limits, totals, 0)
        self.core.apply_setting(f.INITIAL_WINDOW_SIZE, 0)
        self.core.peer = peer
        totals.connections += 1
        peer.connections += 1
        self.pressure = Backpressure(self.core, limits)
        self.made = 0

    def stream(self) -> Http2Stream:
        return self.core.open_stream(2 * self.core.opened + 1)

    def fill(self, stream: Http2Stream, most: int = 1_000) -> None:
        """What a handler does that has answers without end: it makes one, and asks whether it must wait."""
        for _ in range(most):
            self.core.send_data(stream, MESSAGE)
            self.made += 1
            if self.pressure.must_wait(stream):
                return

    def asks(self, streams: int) -> None:
        """Calls of a bidirectional stream: no message is handed to a handler while the connection is over its share."""
        for _ in range(streams):
            if not self.pressure.over_share:
                self.fill(self.stream())

    def takes_all(self) -> None:
        self.core.apply_setting(f.INITIAL_WINDOW_SIZE, f.WINDOW_MAX)
        self.core.send_window = f.WINDOW_MAX
        while self.core.unread_bytes:
            self.core.take(1 << 20)


def test_one_stream_waits_at_its_own_bound_or_with_one_message() -> None:
    one = Reader(Totals(), PeerTotals())
    short, long = one.stream(), one.stream()
    one.fill(short)
    assert short.queued_bytes == LIMITS.stream_unread_bytes
    one.core.send_data(long, bytes(1 << 19))
    assert one.pressure.must_wait(long)


def test_many_connections_of_one_address_leave_no_more_than_its_bound() -> None:
    totals, peer = Totals(), PeerTotals()
    crowd = [Reader(totals, peer) for _ in range(240)]
    for one in crowd:
        one.asks(streams=8)
    most = LIMITS.address_unread_bytes + len(crowd) * len(MESSAGE)
    assert LIMITS.address_unread_bytes <= peer.unread_bytes <= most
    assert totals.unread_bytes == peer.unread_bytes == sum(one.core.unread_bytes for one in crowd)
    for one in crowd:
        one.core.release()
    assert totals.unread_bytes == peer.unread_bytes == peer.streams == 0


def test_many_addresses_leave_no_more_than_the_bound_of_all() -> None:
    totals = Totals()
    crowd = [Reader(totals, PeerTotals()) for _ in range(240)]
    for one in crowd:
        one.asks(streams=8)
    assert LIMITS.unread_bytes <= totals.unread_bytes <= LIMITS.unread_bytes + len(crowd) * len(MESSAGE)


def test_who_reads_waits_for_none_of_its_address_that_does_not() -> None:
    totals, peer = Totals(), PeerTotals()
    crowd = [Reader(totals, peer) for _ in range(20)]
    good = Reader(totals, peer)
    for one in crowd:
        one.asks(streams=100)
    assert peer.unread_bytes >= LIMITS.address_unread_bytes
    for _ in range(50):
        stream = good.stream()
        good.core.send_data(stream, bytes(2 * SHARE_MIN))
        assert not good.pressure.must_wait(stream)
        assert not good.pressure.over_share
        good.takes_all()
    assert crowd[0].pressure.over_share == "address_unread_bytes"
    assert crowd[0].pressure.must_wait(crowd[0].stream()), "also a stream that has nothing unread itself"


class Waiting:
    """A call whose handler waits."""

    def __init__(self) -> None:
        self.woken = 0

    def go_on(self) -> None:
        self.woken += 1


def test_who_waits_for_others_goes_on_when_they_have_read() -> None:
    totals, peer = Totals(), PeerTotals()
    hog, other = Reader(totals, peer), Reader(totals, peer)
    hog.asks(streams=100)
    for _ in range(20):
        other.fill(other.stream())
    stream, call = other.stream(), Waiting()
    assert other.pressure.must_wait(stream)
    other.pressure.waiting[stream] = call  # type: ignore[assignment]  # as much of a call as is used
    other.pressure.wake()
    assert not call.woken
    hog.takes_all()
    other.takes_all()
    other.pressure.wake()
    assert call.woken == 1


def test_what_the_transport_holds_counts_until_it_takes_more() -> None:
    totals, peer = Totals(), PeerTotals()
    one = Reader(totals, peer)
    one.pressure.pause(0, 1 << 20)
    assert totals.unread_bytes == peer.unread_bytes == 1 << 20
    assert one.pressure.over_share == "address_unread_bytes"
    assert one.pressure.write_bytes == WRITE_BYTES_PRESSED
    assert not one.pressure.has_stalled(LIMITS.pressed_stall_ms - 1)
    assert one.pressure.has_stalled(LIMITS.pressed_stall_ms) == "pressed_stall_ms"
    one.pressure.resume()
    one.pressure.resume()
    assert totals.unread_bytes == peer.unread_bytes == 0
    assert one.pressure.write_bytes == WRITE_BYTES
    assert not one.pressure.has_stalled(1 << 30)


@pytest.mark.parametrize("held", [0, SHARE_MIN - 1])
def test_a_socket_that_takes_nothing_has_its_time_while_nobody_is_short(held: int) -> None:
    one = Reader(Totals(), PeerTotals())
    one.pressure.pause(0, held)
    assert not one.pressure.has_stalled(LIMITS.write_stall_ms - 1)
    assert one.pressure.has_stalled(LIMITS.write_stall_ms) == "write_stall_ms"
