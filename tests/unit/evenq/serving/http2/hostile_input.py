"""Input of hostile clients for the HTTP/2 core, without end, and what must stay true whatever comes.

    python tests/unit/evenq/serving/http2/hostile_input.py --count 10000000 --seed 1 --processes 2

An input is what one `Connection.receive` is given: some frames, most of them nearly right, cut, repeated or with bytes
changed. After each one: no exception, no more streams and kept bytes than the limits say, output that is whole frames,
and never more than `INPUT_S` of CPU. What is received is treated as the server does it: heads are read, data is cut into
messages, some calls are answered. The same seed gives the same input.
"""

from __future__ import annotations

import argparse
import multiprocessing
import random
import sys
import time
from collections import Counter

from evenq.serving.http2.connection import Connection
from evenq.serving.http2.events import ConnectionEnded, DataReceived, RequestStarted
from evenq.serving.http2.limits import Http2Limits, Totals
from evenq.serving.http2.messages import GrpcFault, RequestMessageReader
from evenq.serving.http2.requests import request_head
from evenq.serving.http2.streams import Http2Stream
from evenq.wire.http2 import frames as f
from evenq.wire.http2.codes import ErrorCode
from evenq.wire.http2.hpack import encode

LIMITS = Http2Limits(
    frame_bytes_max=16_384, stream_window_bytes=70_000, connection_window_bytes=100_000, header_block_bytes_max=8_192,
    header_list_bytes_max=1_024, header_fields_max=40, continuations_max=4, streams_per_connection_max=8, flood_burst=20,
    resets_burst=16, empty_data_burst=10, settings_burst=8,
)  # fmt: skip
HELLO = f.PREFACE + f.settings({})
USUAL = [
    (b":method", b"POST"), (b":scheme", b"http"), (b":path", b"/s/M"), (b":authority", b"h"),
    (b"content-type", b"application/grpc"), (b"te", b"trailers"),
]  # fmt: skip
BLOCKS = (
    encode(USUAL),
    encode([*USUAL, (b"grpc-timeout", b"1S"), (b"x-mq-request-id", b"1-2-3")]),
    encode([*USUAL, (b"a-bin", b"AAECAw"), (b"content-length", b"7")]),
    encode(USUAL[:2]),
    encode([*USUAL[:2], (b"Upper", b"x"), (b"connection", b"close")]),
    encode(USUAL) + b"\x40\x0cgrpc-timeout\x021S",
    encode(USUAL) + b"\x40\x01n\x01v\xbe",
    b"\x3f\xe1\x1f" + encode(USUAL),
    b"\x20" + encode(USUAL) + b"\x00\x83\xff\xff\xff\x01v",
    b"",
)
MESSAGE = b"\0\0\0\0\x03abc"
BODIES = (MESSAGE, MESSAGE * 3, b"\0\0\0\xff\xff", b"\1\0\0\0\1x", b"\2\0\0\0\0", b"", b"\0\0\0\0\0", bytes(300))
STREAM_IDS = (0, 1, 1, 3, 5, 7, 2, 9, 0x7FFFFFFF)
SIZES = (0, 1, 100, 4_096, 16_383, 16_384, 1 << 24, f.WINDOW_MAX, 0xFFFFFFFF)
INPUTS_OF_ONE = 40
"""After that number a connection is let go; most end themselves before."""
INPUT_S = 2.0
MESSAGE_BYTES_MAX = 1_000
HEAD, TAIL = f.EncodedHeaders(b"\x88"), f.EncodedHeaders(b"\x8d")


class Inputs:
    """An endless row of inputs."""

    def __init__(self, seed: int) -> None:
        self._rng = random.Random(seed)
        self._next_id = 1
        self._last = b""

    def begin(self) -> None:
        """A new connection."""
        self._next_id = 1

    def input(self) -> bytes:
        """What comes next."""
        rng = self._rng
        parts = [self._frame() for _ in range(rng.choice((1, 1, 2, 3, 6)))]
        data = b"".join(parts)
        kind = rng.randrange(80)
        if kind == 0 and data:
            at = rng.randrange(len(data))
            data = data[:at] + bytes((rng.randrange(256),)) + data[at + 1 :]
        elif kind == 1:
            data = data[: rng.randrange(len(data) + 1)]
        elif kind == 2:
            data = rng.randbytes(rng.randrange(40))
        elif kind == 3:
            data = self._last + data
        self._last = parts[0]
        return data

    def _frame(self) -> bytes:
        return self._wild() if not self._rng.randrange(25) else self._tame()

    def _tame(self) -> bytes:
        """A frame that a good client might send here, or nearly."""
        rng = self._rng
        kind = rng.randrange(12)
        if kind < 4:
            stream_id, self._next_id = self._next_id, self._next_id + 2
            return self._headers(stream_id, rng.choice(BLOCKS), rng.choice((0, f.END_STREAM)))
        stream_id = self._known_id()
        if kind < 8 and stream_id:
            body = rng.choice(BODIES)
            if rng.randrange(4):
                return f.frame(f.DATA, rng.choice((0, f.END_STREAM)), stream_id, body)
            padded = bytes((rng.randrange(4),)) + body + bytes(3)
            return f.frame(f.DATA, f.PADDED | rng.choice((0, f.END_STREAM)), stream_id, padded)
        if kind == 8:
            return f.window_update(rng.choice((0, stream_id)), rng.choice((1, 100, 70_000)))
        if kind == 9 and stream_id:
            return f.reset(stream_id, rng.choice(tuple(ErrorCode)))
        if kind == 10:
            pairs = {rng.choice((1, 3, 6)): rng.choice((0, 100, 4_096)), 4: rng.choice((0, 5, 65_535))}
            return f.settings(pairs) if rng.randrange(3) else f.frame(f.SETTINGS, f.ACK, 0)
        return f.frame(f.PING, rng.choice((0, f.ACK)), 0, rng.randbytes(8))

    def _wild(self) -> bytes:
        """A frame with something wrong, most of the time."""
        rng = self._rng
        stream_id, kind = rng.choice(STREAM_IDS), rng.randrange(7)
        if kind == 0:
            block = rng.choice(BLOCKS)
            at = rng.randrange(len(block) + 1)
            return self._headers(stream_id, block[:at] + rng.randbytes(rng.randrange(4)) + block[at + 1 :], 0)
        if kind == 1:
            flags = rng.choice((f.PADDED, f.PRIORITY, f.PADDED | f.END_HEADERS))
            return f.frame(f.HEADERS, flags, self._next_id, rng.choice(BLOCKS))
        if kind == 2:
            return f.frame(f.DATA, rng.randrange(256), stream_id, rng.choice(BODIES))
        if kind == 3:
            return f.frame(f.WINDOW_UPDATE, 0, stream_id, (rng.choice(SIZES) & 0xFFFFFFFF).to_bytes(4, "big"))
        if kind == 4:
            pairs = rng.randrange(9).to_bytes(2, "big") + rng.choice(SIZES).to_bytes(4, "big")
            return f.frame(f.SETTINGS, rng.choice((0, f.ACK)), rng.choice((0, 1)), pairs[: rng.choice((6, 6, 5))])
        if kind == 5:
            return f.frame(f.CONTINUATION, rng.choice((0, f.END_HEADERS)), stream_id, rng.choice(BLOCKS))
        return f.frame(rng.randrange(14), rng.randrange(256), stream_id, rng.randbytes(rng.randrange(30)))

    def _headers(self, stream_id: int, block: bytes, flags: int) -> bytes:
        """A block whole, or in pieces."""
        rng = self._rng
        if rng.randrange(4) or not block:
            return f.frame(f.HEADERS, flags | f.END_HEADERS, stream_id, block)
        cut = rng.randrange(len(block))
        behind = f.frame(f.CONTINUATION, f.END_HEADERS, stream_id, block[cut:])
        return f.frame(f.HEADERS, flags, stream_id, block[:cut]) + behind

    def _known_id(self) -> int:
        """One of the last that were used; 0: none was."""
        return max(0, self._next_id - 2 * self._rng.randrange(1, 5))


class Server:
    """What stands behind the core, as far as it matters."""

    def __init__(self) -> None:
        self.core = Connection(LIMITS, Totals(), 0)
        self._readers: dict[Http2Stream, RequestMessageReader] = {}
        self._answers = 0

    def take(self, data: bytes, seen: Counter[str]) -> None:
        """One input; raises AssertionError for what must not be."""
        core = self.core
        for event in core.receive(data, 0):
            seen[type(event).__name__] += 1
            if isinstance(event, RequestStarted):
                head = request_head(event.block)
                list(head.metadata)
                self._readers[event.stream] = RequestMessageReader(MESSAGE_BYTES_MAX, head.encoding)
                if event.data is not None:
                    self._feed(event.stream, event.data, seen)
            elif isinstance(event, DataReceived):
                self._feed(event.stream, event.data, seen)
            elif isinstance(event, ConnectionEnded):
                seen[event.code.name] += 1
        assert len(core.streams) <= LIMITS.streams_per_connection_max
        assert core.kept_bytes <= max(LIMITS.frame_bytes_max + f.HEADER_BYTES, LIMITS.header_block_bytes_max)
        assert core.totals.streams == len(core.streams)
        self._readers = {stream: reader for stream, reader in self._readers.items() if stream.id in core.streams}
        whole_frames(core.take(1 << 20))

    def _feed(self, stream: Http2Stream, data: bytes, seen: Counter[str]) -> None:
        reader = self._readers.get(stream)
        if reader is None:
            return
        try:
            reader.put(data)
            complete = list(iter(reader.next, None))
        except GrpcFault:
            seen["GrpcFault"] += 1
            complete = [b""]
        assert reader.kept_bytes <= MESSAGE_BYTES_MAX + len(MESSAGE)
        self.core.consumed(stream, len(data))
        self._answers += 1
        if complete and self._answers % 3 and self.core.streams.get(stream.id) is stream:
            self.core.respond(stream, HEAD, complete[0], TAIL)

    def end(self) -> None:
        """The connection is gone: nothing of it is counted any more."""
        self.core.release()
        totals = self.core.totals
        assert totals.streams == totals.unread_bytes == 0


def whole_frames(output: bytes) -> None:
    """Raises AssertionError if these are not frames, one behind the other."""
    position = 0
    while position < len(output):
        high, low, *_ = f.HEADER.unpack_from(output, position)
        position += f.HEADER_BYTES + (high << 8 | low)
    assert position == len(output)


def run(count: int, seed: int) -> Counter[str]:
    """Give `count` inputs; what was seen. Raises what went wrong, with the seed and the input's number."""
    inputs, seen = Inputs(seed), Counter[str]()
    server, left, data = Server(), 0, b""
    for number in range(count):
        try:
            if left == 0 or server.core.ended:
                server.end()
                server, left = Server(), INPUTS_OF_ONE
                inputs.begin()
                server.take(HELLO, seen)
                seen["connections"] += 1
            left -= 1
            data = inputs.input()
            start = time.process_time()
            server.take(data, seen)
        except Exception as error:
            raise AssertionError(f"seed {seed}, input {number}: {data.hex()}: {error!r}") from error
        if time.process_time() - start > INPUT_S:
            raise AssertionError(f"seed {seed}, input {number} took over {INPUT_S} s: {data.hex()}")
    return seen


def _share(given: tuple[int, int]) -> Counter[str]:
    return run(*given)


def main() -> None:
    parser = argparse.ArgumentParser(description="Give the HTTP/2 core the input of hostile clients.")
    parser.add_argument("--count", type=int, default=1_000_000, help="inputs")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--processes", type=int, default=1)
    options = parser.parse_args()
    start, step = time.monotonic(), 100_000
    shares = [
        (min(step, options.count - first), options.seed * 1_000_000_000 + first)
        for first in range(0, options.count, step)
    ]
    seen, done = Counter[str](), 0
    with multiprocessing.get_context("spawn").Pool(options.processes) as pool:
        for (size, _), found in zip(shares, pool.imap(_share, shares), strict=True):
            seen += found
            done += size
            sys.stderr.write(f"\r{done:,} of {options.count:,} inputs ")
    sys.stderr.write("\n")
    reported = ", ".join(f"{name} {number:,}" for name, number in seen.most_common())
    print(
        f"{options.count:,} inputs, seed {options.seed}, {time.monotonic() - start:.0f} s: nothing wrong. Seen: {reported}"
    )


if __name__ == "__main__":
    main()
