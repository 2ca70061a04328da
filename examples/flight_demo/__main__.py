"""`python -m flight_demo`: runs the demo, or one of its parts in its own process."""

from __future__ import annotations

import argparse
import itertools
import sys
import threading
from collections.abc import Callable
from pathlib import Path

from evenq.errors import Error
from evenq.runtime.clock import SystemClock
from flight_demo.spark_jobs import serve


def main(arguments: list[str] | None = None) -> int:
    """Returns 0 if every figure agrees, otherwise 1 with a message."""
    options = parser().parse_args(arguments)
    try:
        if options.part == "publish":
            return publish_part(options)
        if options.part == "consume":
            return consume_part(options)
        if options.part == "jobs":
            return serve()
        from flight_demo.run import Demo

        demo = Demo(limit=options.flights, spark=not options.no_spark, shared=options.shared, folder=options.folder)
        return 0 if demo.run() else 1
    except Error as error:
        print(f"demo: {error}", file=sys.stderr)
        return 1


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(
        prog="python -m flight_demo",
        description="Sends a year of flights through a cluster and compares every figure.",
    )
    top.add_argument("--flights", type=int, metavar="N", help="only the first N flights (default: all 336,776)")
    top.add_argument("--no-spark", action="store_true", help="skip the Spark jobs and the third act")
    top.add_argument("--shared", action="store_true", help="third act: stream and consumers are members of one group")
    top.add_argument("--folder", type=Path, help="keep logs, histories and data here")
    parts = top.add_subparsers(dest="part", metavar="PART", help="one part, for a running cluster: publish or consume")
    publish = parts.add_parser("publish", help="send the flights and write the history of acknowledgements")
    publish.add_argument("--endpoint", default="127.0.0.1:8081")
    publish.add_argument("--topic", default="flights")
    publish.add_argument("--history", type=Path, required=True)
    publish.add_argument("--flights", type=int, metavar="N")
    publish.add_argument("--rate", type=int, default=0, metavar="R", help="flights per second (default: no limit)")
    consume = parts.add_parser("consume", help="run one member of a group until SIGTERM")
    consume.add_argument("--endpoint", default="127.0.0.1:8081")
    consume.add_argument("--topic", default="flights")
    consume.add_argument("--group", default="delay-desk")
    consume.add_argument("--member", required=True)
    consume.add_argument("--folder", type=Path, required=True)
    parts.add_parser("jobs", help="run the Spark jobs that standard input names")
    return top


def publish_part(options: argparse.Namespace) -> int:
    """Publishes and prints one line."""
    from flight_demo.flights import flights
    from flight_demo.publishing import publish

    done = publish(
        flights(options.flights),
        endpoint=options.endpoint,
        topic=options.topic,
        history=options.history,
        clock=SystemClock(),
        pause=steady(options.rate),
    )
    print(f"acknowledged {done.acknowledged} retried {done.retried}", flush=True)
    return 0


def steady(rate: int) -> Callable[[int], None]:
    """Returns a function that waits before each send, for `rate` sends per second; 0 = no limit."""
    clock, pause, sent = SystemClock(), threading.Event(), itertools.count()
    begin_ms = clock.monotonic_ms()

    def wait(_: int) -> None:
        ahead_ms = next(sent) * 1_000 // rate - (clock.monotonic_ms() - begin_ms) if rate else 0
        if ahead_ms > 0:
            pause.wait(ahead_ms / 1_000)

    return wait


def consume_part(options: argparse.Namespace) -> int:
    from flight_demo.members import consume

    options.folder.mkdir(parents=True, exist_ok=True)
    consume(
        endpoint=options.endpoint,
        topic=options.topic,
        group=options.group,
        member=options.member,
        folder=options.folder,
        clock=SystemClock(),
    )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
