"""Ordered payments.

In a FIFO topic, messages of one message group are delivered in the order of their sends, one listener call at a time.
The message group here is the account: payments of one account wait for each other, accounts do not. A failed payment is
repeated before later ones of its queue run.

Prints:

    ann: +100 -30 -70 = 0
    ben: +20 +5 -25 = 0
"""

from __future__ import annotations

import threading
from collections import defaultdict

import evenq

PAYMENTS = [("ann", 100), ("ben", 20), ("ann", -30), ("ben", 5), ("ann", -70), ("ben", -25)]


def main() -> None:
    booked: dict[str, list[int]] = defaultdict(list)
    done = threading.Event()

    def book(messages: list[evenq.ReceivedMessage]) -> None:
        for message in messages:
            account = message.message_group or ""
            booked[account].append(int(message.body))
            if sum(booked[account]) < 0:
                raise ValueError(f"{account} is overdrawn: payments arrived out of order")
        if sum(len(amounts) for amounts in booked.values()) == len(PAYMENTS):
            done.set()

    with evenq.Admin() as admin:
        admin.create_topic("payments", message_type="FIFO")
    consumer = evenq.PushConsumer(
        group="bookkeeping", listener=book, subscriptions={"payments": "*"}, start_from="FIRST"
    )
    with consumer, evenq.Producer() as producer:
        for account, amount in PAYMENTS:
            producer.send(evenq.Message(topic="payments", body=str(amount).encode(), message_group=account))
        done.wait(60)
    for account, amounts in sorted(booked.items()):
        print(f"{account}: {' '.join(f'{amount:+}' for amount in amounts)} = {sum(amounts)}")


if __name__ == "__main__":
    main()
