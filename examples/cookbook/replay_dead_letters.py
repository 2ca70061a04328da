"""Dead letters, and their replay after a repair.

A message that fails all its attempts moves to the dead letters of its group, so it blocks nothing. When the cause is
repaired, `replay_dead_letters` sends each of them once more to its topic; on the command line that is
`evenq dlq replay invoicing --yes`. An interrupted replay continues where it stopped.

Prints:

    failed: invoice-7, attempt 1
    failed: invoice-7, attempt 2
    1 dead letter of the group invoicing: invoice-7, after 2 attempts
    replayed: 1
    booked: invoice-7
"""

from __future__ import annotations

import queue
import threading

import evenq
from evenq.model.retry import RetryKind, RetryPolicy


def main() -> None:
    repaired = False
    booked: queue.Queue[str] = queue.Queue()
    pause = threading.Event()

    def book(messages: list[evenq.ReceivedMessage]) -> None:
        for message in messages:
            invoice = message.body.decode()
            if not repaired:
                print(f"failed: {invoice}, attempt {message.delivery_attempt}")
                raise RuntimeError("the tax table is missing")
            booked.put(invoice)

    with evenq.Admin() as admin:
        short = RetryPolicy(kind=RetryKind.CUSTOMIZED, delays_ms=(100,))  # the default waits 10 s, then longer
        admin.create_group("invoicing", max_attempts=2, retry=short, start_from="FIRST")
        with (
            evenq.Producer() as producer,
            evenq.PushConsumer(group="invoicing", listener=book, subscriptions={"invoices": "*"}),
        ):
            producer.send(evenq.Message(topic="invoices", body=b"invoice-7"))
            while not (letters := admin.list_dead_letters("invoicing", bodies=True).letters):
                pause.wait(0.2)  # it is still being tried
            [letter] = letters
            print(f"1 dead letter of the group invoicing: {letter.body.decode()}, after {letter.attempts} attempts")
            repaired = True
            print(f"replayed: {sum(broker.replayed for broker in admin.replay_dead_letters('invoicing'))}")
            print(f"booked: {booked.get(timeout=60)}")


if __name__ == "__main__":
    main()
