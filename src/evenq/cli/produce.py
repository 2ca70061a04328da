"""`evenq produce TOPIC`: sends messages from the command line, a file or a pipe."""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import nullcontext
from dataclasses import replace
from typing import IO, Any

from evenq.cli.output import Column, Listing, Page, print_lines, print_page, progress_bar
from evenq.cli.values import future_ms
from evenq.client.topic_shape import TopicShape, settled_shape_of, shape_of
from evenq.errors import BadRequest, Error
from evenq.model import Message
from evenq.runtime.clock import SystemClock

WHOLE_BYTES_MAX = 64 << 20
"""More than brokers accept (4 MiB - 64 KiB unless set): their error then names the limit."""
ATTEMPTS_MAX = 100
"""More than fit into the 30 s of a send: it outlasts a broker's restart or the election of a leader."""


def bodies(options: argparse.Namespace) -> Iterator[bytes]:
    """Yields the bodies to send, without empty lines. Raises BadRequest when there is no source."""
    if options.file is None and not options.whole and (options.body is not None or options.count is not None):
        pattern = options.body if options.body is not None else "message {n}"
        for number in range(1, (options.count or 1) + 1):
            yield pattern.replace("{n}", str(number)).encode(errors="surrogateescape")  # the bytes of the argument
        return
    if options.file is None and sys.stdin.isatty():
        raise BadRequest("nothing to send: give --body TEXT, --count N, --file FILE, or a pipe on standard input")
    from_pipe = options.file is None or str(options.file) == "-"
    with nullcontext(sys.stdin.buffer) if from_pipe else options.file.open("rb") as lines:
        if options.whole:
            yield _whole(lines, "standard input" if from_pipe else str(options.file))
            return
        for number, line in enumerate(filter(None, (line.rstrip(b"\r\n") for line in lines))):
            if options.count is not None and number >= options.count:
                return
            yield line


def _whole(file: IO[bytes], name: str) -> bytes:
    """Returns the content as one body. Raises BadRequest if it is empty or too large."""
    body = file.read(WHOLE_BYTES_MAX + 1)
    if len(body) > WHOLE_BYTES_MAX:
        raise BadRequest(
            f"{name} is larger than {WHOLE_BYTES_MAX >> 20} MiB, which no broker accepts; send it in pieces, or its "
            "address"
        )
    if not body:
        raise BadRequest(f"{name} is empty, and a message has at least one byte; give --body TEXT, or another file")
    return body


def _check(options: argparse.Namespace) -> int | None:
    """Returns the delivery time, ms since the epoch. Raises BadRequest for options that contradict each other."""
    if options.whole and (options.count is not None or options.body is not None):
        raise BadRequest("--whole sends one file as one message; leave out --count and --body")
    names = [name for name, _ in options.property]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise BadRequest(f"property {twice} is given twice; give each property once")
    if options.deliver_at is None:
        return None
    return future_ms(options.deliver_at, now_ms=SystemClock().now_ms())


def run(options: argparse.Namespace) -> int:
    """Sends all messages and prints their queues; returns 1 if some were refused."""
    from evenq.client.options import ProducerOptions
    from evenq.client.producer import Producer

    delivery_ms = _check(options)
    landed: Counter[tuple[str, int]] = Counter()
    first: dict[str, Any] = {}
    failures: list[BaseException] = []

    def answered(future: Future[Any]) -> None:
        error = future.exception()
        if error is not None:
            failures.append(error)
            return
        result = future.result()
        first.setdefault("message_id", result.message_id)
        if result.recall_handle:
            first.setdefault("recall_handle", result.recall_handle)
        landed[result.queue.broker_name, result.queue.queue_id] += 1

    timeout_ms = min(options.timeout * 1000, 30_000)
    before = shape_of(options.topic, options.endpoint, timeout_ms=timeout_ms)
    total = (options.count or 1) if options.file is None and (options.body or options.count) else None
    total = 1 if options.whole else total
    settings = ProducerOptions(timeout_ms=timeout_ms)
    if before is not None:  # an owner was there, so that waiting for it makes sense
        settings = replace(settings, max_attempts=ATTEMPTS_MAX)
    with Producer(endpoint=options.endpoint, options=settings) as producer, _progress(total, options) as advance:
        for body in bodies(options):
            message = Message(
                topic=options.topic,
                body=body,
                tag=options.tag,
                keys=tuple(options.key),
                message_group=options.message_group,
                priority=options.priority,
                lite_topic=options.lite_topic,
                delay=options.delay,
                delivery_ms=delivery_ms,
                properties=dict(options.property),
            )
            producer.send_async(message).add_done_callback(answered)
            advance()
            if failures:
                break
        producer.flush()
    made = None
    if landed and before is not None and not before.kind:
        made = settled_shape_of(options.topic, options.endpoint, timeout_ms=timeout_ms)
    _report(options, landed, first, failures, made)
    return 1 if failures else 0


def _report(
    options: argparse.Namespace,
    landed: Counter[tuple[str, int]],
    first: dict[str, Any],
    failures: list[BaseException],
    made: TopicShape | None,
) -> None:
    sent = sum(landed.values())
    columns = (Column("broker", "broker"), Column("queue", "queue", "number"), Column("messages", "messages", "number"))
    rows = [(broker, queue if queue >= 0 else None, count) for (broker, queue), count in sorted(landed.items())]
    facts: dict[str, Any] = {"topic": options.topic, "sent": sent, "failed": len(failures)}
    sentence = f"Sent {sent:,} message{'s' * (sent != 1)} to {options.topic}."
    recall = ""
    if sent == 1:
        facts |= first
        sentence = f"Sent {first['message_id']} to {options.topic}."
        if "recall_handle" in first:
            recall = f"evenq message recall {options.topic} {first['recall_handle']}"
    if made is not None and made.kind:
        facts["created"] = made.sentence(options.topic)
        sentence = f"{sentence} It {made.sentence(options.topic)}."
    if sent or not failures:
        print_page(
            Page(
                facts=facts,
                listings=[Listing(key="queues", columns=columns, rows=rows)],
                sentence=sentence,
                names="message_id" if "message_id" in facts else "topic",
            ),
            options.output,
        )
        if recall and not options.output.for_programs:
            print_lines("To recall it:", recall)  # alone on its line: users copy it
    if failures and isinstance(failures[0], Error):
        raise failures[0]
    if failures:
        raise BadRequest(f"{len(failures)} messages were refused: {failures[0]}") from failures[0]


class _progress:  # noqa: N801  # used like a function: a `with` block that yields one
    """A progress bar on standard error, if that is a terminal, unless one message is sent."""

    def __init__(self, total: int | None, options: argparse.Namespace) -> None:
        self._total = total
        self._shown = not options.output.for_programs and sys.stderr.isatty() and total != 1
        self._bar: Any = None

    def __enter__(self) -> Any:
        if not self._shown:
            return lambda: None
        from rich.progress import BarColumn, MofNCompleteColumn, TimeRemainingColumn

        self._bar = progress_bar(BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        self._bar.start()
        task = self._bar.add_task("sending", total=self._total)
        return lambda: self._bar.advance(task)

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()
