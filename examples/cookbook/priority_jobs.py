"""A queue with priorities.

A topic of type PRIORITY delivers the highest priority first, of the messages that wait. Read it with a simple consumer
and small batches: what a consumer has received is not overtaken. Low priorities wait as long as there are higher ones,
so work that must not starve needs a topic of its own.

Prints:

    9: put out the fire
    3: make coffee
    0: tidy up
"""

from __future__ import annotations

import evenq

JOBS = [("tidy up", 0), ("put out the fire", 9), ("make coffee", 3)]


def main() -> None:
    with evenq.Admin() as admin:
        admin.create_topic("urgent-jobs", message_type="PRIORITY")
    with evenq.Producer() as producer:
        for job, priority in JOBS:
            producer.send(evenq.Message(topic="urgent-jobs", body=job.encode(), priority=priority))
    with evenq.SimpleConsumer(
        group="urgent-workers", subscriptions={"urgent-jobs": "*"}, start_from="FIRST"
    ) as consumer:
        done = 0
        while done < len(JOBS):
            for message in consumer.receive(1, wait_ms=10_000):
                print(f"{message.priority}: {message.body.decode()}")
                consumer.ack(message)
                done += 1


if __name__ == "__main__":
    main()
