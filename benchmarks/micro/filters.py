"""Cost of an SQL filter: messages/s that a typical expression tests.

python benchmarks/micro/filters.py [--seconds 1] [--rounds 5] [--properties 6] [--body 1024]

The floor is the same test as a plain Python `lambda` over decoded dicts; `decoded floor` is that lambda with the
decoding of the stored bytes, so its difference to `filter` is the cost of the compiled expression. Each line has
messages/s (median of the rounds, in turns), the spread, and the ratio to the floor. Then follow the times to parse the
expression, and the longest allowed one.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

from evenq_broker.loops.wire.stored_messages import message_filter, user_properties

from evenq.filters import TERMS_MAX, sql_filter
from evenq.store import StoredMessage
from evenq.wire.stubs.apache.rocketmq.v2 import definition_pb2

EXPRESSION = "region IN ('eu', 'us') AND amount > 100 AND paid = TRUE"
MESSAGES = 1_000
LONGEST = " OR ".join(f"a={number}" for number in range(TERMS_MAX // 2))


def stored(number: int, properties: int, body: int) -> StoredMessage:
    message = definition_pb2.Message(body=b"b" * body)
    message.topic.name = "orders"
    message.user_properties.update({f"other-{at}": f"value {at}" for at in range(properties - 3)})
    message.user_properties["region"] = ("eu", "us", "asia")[number % 3]
    message.user_properties["amount"] = str(number % 200)
    message.user_properties["paid"] = "true" if number % 2 else "false"
    system = definition_pb2.SystemProperties(tag="new", message_id=f"id-{number}")
    return StoredMessage(1, 0, number, 0, 0, 0, 0, message.SerializeToString(), system.SerializeToString())


def plain(properties: Any) -> bool:
    return (
        properties.get("region") in {"eu", "us"}
        and int(properties.get("amount", "0")) > 100
        and properties.get("paid", "").lower() == "true"
    )


def rate(test: Callable[[Any], bool], messages: Sequence[Any], seconds: float, expected: int) -> float:
    begun, count = time.perf_counter(), 0
    while (spent := time.perf_counter() - begun) < seconds:
        assert sum(map(test, messages)) == expected
        count += len(messages)
    return count / spent


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--seconds", type=float, default=1)
    options.add_argument("--rounds", type=int, default=5)
    options.add_argument("--properties", type=int, default=6)
    options.add_argument("--body", type=int, default=1024)
    options = options.parse_args()
    messages = [stored(number, options.properties, options.body) for number in range(MESSAGES)]
    decoded = [dict(user_properties(message.head)) for message in messages]
    by_sql = message_filter(EXPRESSION, is_sql=True).matches
    by_tag = message_filter("new || paid", is_sql=False).matches
    evaluate = sql_filter(EXPRESSION).evaluate
    assert by_sql is not None
    assert by_tag is not None
    expected = sum(map(plain, decoded))
    kinds: dict[str, tuple[Callable[[Any], bool], Sequence[Any], int]] = {
        "floor: lambda over dicts": (lambda one: plain(one), decoded, expected),  # noqa: PLW0108 # as a user has it
        "expression over dicts": (lambda one: evaluate(one) is True, decoded, expected),
        "decoded floor": (lambda one: plain(user_properties(one.head)), messages, expected),
        "filter": (by_sql, messages, expected),
        "tag filter": (by_tag, messages, MESSAGES),
    }
    rates: dict[str, list[float]] = {name: [] for name in kinds}
    for _ in range(options.rounds):
        for name, (test, over, count) in kinds.items():
            rates[name].append(rate(test, over, options.seconds / len(kinds), count))
    floor = statistics.median(rates["floor: lambda over dicts"])
    print(f"{EXPRESSION!r}, {options.properties} properties, {options.body} bytes of body")
    for name, found in rates.items():
        middle = statistics.median(found)
        spread = (max(found) - min(found)) / middle
        print(f"{name:26} {middle:12,.0f} messages/s  spread {spread:4.0%}  {middle / floor:5.2f} of the floor")
    for name, text in (("typical", EXPRESSION), ("longest", LONGEST)):
        spent = [parsing(text) for _ in range(options.rounds)]
        print(f"parse, {name:9} {len(text):6} characters {statistics.median(spent) * 1e3:8.2f} ms")


def parsing(text: str) -> float:
    begun = time.perf_counter()
    sql_filter(text)
    return time.perf_counter() - begun


if __name__ == "__main__":
    main()
