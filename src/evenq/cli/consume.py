"""`evenq consume TOPIC --group G`: receive, print and acknowledge messages, at most `--max`.

Messages are acknowledged after they were printed, one call per received batch. A broken pipe or Ctrl-C loses nothing:
messages that were not printed are redelivered to the group.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from evenq.cli.exit_codes import ExitCode
from evenq.cli.formats import Output
from evenq.cli.output import print_lines, print_record, progress_console
from evenq.model import FilterExpression, ReceivedMessage
from evenq.runtime.clock import SystemClock
from evenq.runtime.printable import printable

if TYPE_CHECKING:
    from evenq.client.lite_consumer import LiteSimpleConsumer
    from evenq.client.simple_consumer import SimpleConsumer

BATCH_MAX = 32
INVISIBLE_MS = 30_000
WAIT_MS = 5_000
FIRST_WAIT_MS = 1_000
"""Shorter, so that the hint about the start of a group is printed soon."""


def message_fields(message: ReceivedMessage) -> dict[str, Any]:
    """Returns one message for programs. A body that is not UTF-8 becomes base64 in `body_base64`."""
    fields: dict[str, Any] = {
        "topic": message.topic,
        "broker": message.queue.broker_name,
        "queue": message.queue.queue_id,
        "offset": message.queue_offset,
        "message_id": message.message_id,
        "tag": message.tag,
        "keys": list(message.keys),
        "properties": dict(message.properties),
        "message_group": message.message_group,
        "lite_topic": message.lite_topic,
        "born_ms": message.born_ms,
        "store_ms": message.store_ms,
        "attempt": message.delivery_attempt,
    }
    try:
        fields["body"] = message.body.decode()
    except UnicodeDecodeError:
        import base64

        fields["body_base64"] = base64.b64encode(message.body).decode()
    return fields


def message_as_text(message: ReceivedMessage) -> str:
    """Returns one line for people: time, place, tag and keys, body."""
    time = datetime.fromtimestamp(message.store_ms / 1000).astimezone().strftime("%H:%M:%S")
    position = f"{message.queue.broker_name}/{message.queue.queue_id}:{message.queue_offset}"
    marks = " ".join(filter(None, (message.tag, *message.keys, message.message_group, message.lite_topic)))
    again = f" (attempt {message.delivery_attempt})" if message.delivery_attempt > 1 else ""
    body = message.body.decode(errors="backslashreplace")
    return printable(f"{time}  {position:<16}  {f'[{marks}] ' if marks else ''}{body}{again}")


def shower(output: Output) -> Callable[[ReceivedMessage], None]:
    """Returns the function that prints one message in this form."""
    if output.for_programs:
        return lambda message: print_record(message_fields(message), output, name=message.message_id)
    return lambda message: print_lines(message_as_text(message))


def run(options: argparse.Namespace) -> int:
    """Receives until `--max`, `--idle` or Ctrl-C, which interrupts a command with one of these options."""
    counted = Counter[str]()
    code = ExitCode.DONE
    try:
        _receive(options, counted)
    except KeyboardInterrupt:
        if options.max is not None or options.idle is not None:
            code = ExitCode.INTERRUPTED
    if not options.output.for_programs:
        count = counted["received"]
        sys.stdout.flush()
        sentence = f"Received {count:,} message{'s' * (count != 1)} of {options.topic} as {options.group}."
        progress_console().print(sentence)
    return code


def _consumer(options: argparse.Namespace) -> SimpleConsumer | LiteSimpleConsumer:
    if options.lite_topic:
        from evenq.client.lite_consumer import LiteSimpleConsumer

        return LiteSimpleConsumer(
            group=options.group, endpoint=options.endpoint, topic=options.topic, lite_topics=options.lite_topic
        )
    from evenq.client.simple_consumer import SimpleConsumer

    chosen = options.filter if options.sql is None else FilterExpression.sql(options.sql)
    start_from = options.start_from.upper() if options.start_from else None
    return SimpleConsumer(
        group=options.group, endpoint=options.endpoint, subscriptions={options.topic: chosen}, start_from=start_from
    )


def _receive(options: argparse.Namespace, counted: Counter[str]) -> None:
    clock = SystemClock()
    last_ms = clock.monotonic_ms()
    wait_ms = FIRST_WAIT_MS
    with _consumer(options) as consumer:
        while options.max is None or counted["received"] < options.max:
            count = BATCH_MAX if options.max is None else min(BATCH_MAX, options.max - counted["received"])
            messages = consumer.receive(count, invisible_ms=INVISIBLE_MS, wait_ms=wait_ms)
            wait_ms = WAIT_MS if options.idle is None else min(WAIT_MS, options.idle * 1000)
            if messages:
                print_and_ack(consumer, messages, shower(options.output), counted)
                last_ms = clock.monotonic_ms()
            else:
                _say_where_it_begins(options, counted)
            if not messages and options.idle is not None and clock.monotonic_ms() - last_ms >= options.idle * 1000:
                break


def _say_where_it_begins(options: argparse.Namespace, counted: Counter[str]) -> None:
    """Prints a hint once while no message arrives: new users expect to see stored messages."""
    if options.start_from == "first" or counted["received"] or counted["said"]:
        return
    counted["said"] += 1
    progress_console().print(
        f"Waiting for new messages of {options.topic}: a group that has not read a topic starts at its end (LAST). To "
        f"read stored messages: evenq offset reset {options.group} --topic {options.topic} --to earliest --yes"
    )


def print_and_ack(
    consumer: SimpleConsumer | LiteSimpleConsumer,
    messages: Sequence[ReceivedMessage],
    show: Callable[[ReceivedMessage], None],
    counted: Counter[str],
) -> None:
    """Prints messages and acknowledges them in one call, for speed.

    Ctrl-C leaves those that were not printed unacknowledged; a broken pipe leaves all of them.
    """
    printed: list[ReceivedMessage] = []
    try:
        for message in messages:
            show(message)  # one by one: Ctrl-C must not lose text that counts as printed
            printed.append(message)
        consumer.ack(*printed)
    except KeyboardInterrupt:  # possibly within the call above: a second ack changes nothing
        consumer.ack(*printed)
        raise
    finally:
        counted["received"] += len(printed)
