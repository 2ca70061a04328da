"""Reminders: delayed messages, and their recall.

A broker keeps a message with a delay hidden until it is due, to the millisecond and for up to 40 days. `send` returns a
handle by which the message can be recalled until then.

Prints:

    two reminders are set
    recalled: water the plants
    reminder: call Ann
"""

from __future__ import annotations

from datetime import timedelta

import evenq


def main() -> None:
    with evenq.Admin() as admin:
        admin.create_topic("reminders", message_type="DELAY")
    with (
        evenq.SimpleConsumer(group="reminded", subscriptions={"reminders": "*"}, start_from="FIRST") as consumer,
        evenq.Producer() as producer,
    ):
        producer.send(evenq.Message(topic="reminders", body=b"call Ann", delay=timedelta(seconds=1)))
        plants = producer.send(evenq.Message(topic="reminders", body=b"water the plants", delay=timedelta(days=1)))
        print("two reminders are set")
        producer.recall("reminders", plants.recall_handle)
        print("recalled: water the plants")
        while not (due := consumer.receive(wait_ms=10_000)):
            pass  # nothing is due yet: wait again
        for message in due:
            print(f"reminder: {message.body.decode()}")
            consumer.ack(message)


if __name__ == "__main__":
    main()
