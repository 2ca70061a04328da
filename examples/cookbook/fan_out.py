"""Fan-out: several groups read one topic, some of them only certain tags.

Each group gets every message once and has its own progress, so one slow group delays no other. The filter `abroad ||
express` is applied by the broker: other messages are not sent to that group. A new group needs no change of the sender.

Prints:

    mails: 1 Rome, 2 Paris, 3 Rome, 4 Oslo
    customs: 2 Paris, 4 Oslo
"""

from __future__ import annotations

import threading
from contextlib import ExitStack

import evenq

PARCELS = [("1 Rome", "inland"), ("2 Paris", "abroad"), ("3 Rome", "inland"), ("4 Oslo", "express")]
GROUPS = {"mails": ("*", 4), "customs": ("abroad || express", 2)}


def reader(group: str, tags: str, wanted: int, seen: list[str], done: threading.Event) -> evenq.PushConsumer:
    def handle(messages: list[evenq.ReceivedMessage]) -> None:
        seen.extend(message.body.decode() for message in messages)
        if len(seen) == wanted:
            done.set()

    return evenq.PushConsumer(group=group, listener=handle, subscriptions={"parcels": tags}, start_from="FIRST")


def main() -> None:
    seen: dict[str, list[str]] = {group: [] for group in GROUPS}
    done = {group: threading.Event() for group in GROUPS}
    with ExitStack() as stack:
        for group, (tags, wanted) in GROUPS.items():
            stack.enter_context(reader(group, tags, wanted, seen[group], done[group]))
        producer = stack.enter_context(evenq.Producer())
        for parcel, tag in PARCELS:
            producer.send(evenq.Message(topic="parcels", body=parcel.encode(), tag=tag))
        for event in done.values():
            event.wait(60)
    for group, parcels in seen.items():
        print(f"{group}: {', '.join(sorted(parcels))}")


if __name__ == "__main__":
    main()
