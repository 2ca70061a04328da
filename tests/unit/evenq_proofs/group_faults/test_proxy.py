"""The proxy between brokers: what each kind of broken link does to the bytes of two real sockets."""

from __future__ import annotations

import random
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress

import pytest
from evenq_proofs.group_faults.proxy import FaultProxy, Flow, ProxyLoop

HELD = Flow(held=True)
SOON_S, LONG_S = 0.2, 20.0


class Pair:
    """A connection through a proxy, with both its ends."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self._listening = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        loop = stack.enter_context(ProxyLoop(random.Random(1)))
        self.proxy: FaultProxy = loop.proxy(self._listening.getsockname()[1])
        self.dialler = stack.enter_context(socket.create_connection(("127.0.0.1", self.proxy.port)))
        self.target = self.next_target()

    def next_target(self) -> socket.socket:
        self._listening.settimeout(LONG_S)
        return self._stack.enter_context(self._listening.accept()[0])


@pytest.fixture
def pair() -> Iterator[Pair]:
    with ExitStack() as stack:
        yield Pair(stack)


def got(end: socket.socket, count: int, *, within_s: float = LONG_S) -> bytes:
    """What arrives; ends early at the connection's end or after the time."""
    data = b""
    end.settimeout(within_s)
    try:
        while len(data) < count and (more := end.recv(65_536)):
            data += more
    except (TimeoutError, ConnectionResetError):
        pass
    return data


def test_an_open_proxy_passes_everything_in_both_directions(pair: Pair) -> None:
    question, answer = random.Random(2).randbytes(300_000), random.Random(3).randbytes(200_000)
    pair.dialler.sendall(question)
    assert got(pair.target, len(question)) == question
    pair.target.sendall(answer)
    assert got(pair.dialler, len(answer)) == answer


def test_one_direction_is_held_while_the_other_goes_on_and_comes_afterwards(pair: Pair) -> None:
    pair.proxy.there = HELD
    pair.dialler.sendall(b"question")
    pair.target.sendall(b"word")
    assert got(pair.dialler, 4) == b"word"
    assert got(pair.target, 8, within_s=SOON_S) == b""
    pair.proxy.mend()
    assert got(pair.target, 8) == b"question"


def test_nobody_connects_through_a_direction_that_is_held(pair: Pair) -> None:
    pair.proxy.back = HELD
    late = socket.create_connection(("127.0.0.1", pair.proxy.port))
    with late:
        late.sendall(b"hello")
        time.sleep(SOON_S)  # nothing can be waited for where nothing may happen
        assert pair.proxy.standing == 1, "the first one alone"
        pair.proxy.mend()
        assert got(pair.next_target(), 5) == b"hello"


def test_late_bytes_come_in_order(pair: Pair) -> None:
    pair.proxy.there = Flow(late_ms=150, jitter_ms=100)
    begun = time.monotonic()
    for number in range(20):
        pair.dialler.sendall(bytes([number]) * 100)
        time.sleep(0.005)
    assert got(pair.target, 2_000) == b"".join(bytes([number]) * 100 for number in range(20))
    assert time.monotonic() - begun >= 0.05


def test_a_connection_is_torn_within_what_was_sent(pair: Pair) -> None:
    sent = random.Random(4).randbytes(2_000_000)
    pair.proxy.there = Flow(bytes_max=100_000)
    with suppress(OSError):  # it is reset meanwhile
        pair.dialler.sendall(sent)
    arrived = got(pair.target, len(sent))
    assert len(arrived) <= 100_000
    assert sent.startswith(arrived)
    assert pair.proxy.resets == 1


def test_who_dialled_keeps_a_half_open_connection_that_leads_nowhere(pair: Pair) -> None:
    pair.dialler.sendall(b"one")
    assert got(pair.target, 3) == b"one"
    pair.proxy.half_open()
    assert got(pair.target, 1) == b"", "its end is closed"
    pair.dialler.sendall(b"two")
    assert got(pair.dialler, 1, within_s=SOON_S) == b""
    pair.dialler.sendall(b"three")  # no error: it was not notified


def test_what_was_said_comes_again_on_a_second_connection(pair: Pair) -> None:
    pair.dialler.sendall(b"opening")
    assert got(pair.target, 7) == b"opening"
    assert pair.proxy.say_again() == 1
    assert got(pair.next_target(), 7) == b"opening"
    pair.target.sendall(b"still here")
    assert got(pair.dialler, 10) == b"still here"


def test_a_reset_ends_both_sides(pair: Pair) -> None:
    pair.dialler.sendall(b"x")
    assert got(pair.target, 1) == b"x"
    pair.proxy.reset()
    assert got(pair.dialler, 1) == b""
    assert got(pair.target, 1) == b""
