"""Request and reply.

`producer.request` sends a message and waits for its reply. Any number of workers answer, each request is answered by
one of them, and requests wait while no worker runs. A request may be delivered twice, so its work must be repeatable.
If no reply comes in time, the call raises `RequestTimeout`.

Prints:

    2 + 3 = 5
    40 + 2 = 42
"""

from __future__ import annotations

import json

import evenq


def main() -> None:
    with evenq.Producer() as producer:

        def answer(requests: list[evenq.ReceivedMessage]) -> None:
            for request in requests:
                total = sum(json.loads(request.body))
                producer.send_async(evenq.reply_to(request, json.dumps(total).encode()))

        worker = evenq.PushConsumer(group="adders", listener=answer, subscriptions={"sums": "*"}, start_from="FIRST")
        with worker:
            for numbers in ([2, 3], [40, 2]):
                question = evenq.Message(topic="sums", body=json.dumps(numbers).encode())
                reply = producer.request(question, timeout_ms=30_000)
                print(f"{numbers[0]} + {numbers[1]} = {reply.body.decode()}")


if __name__ == "__main__":
    main()
