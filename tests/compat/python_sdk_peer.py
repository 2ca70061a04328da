"""A process that uses the official Python SDK and nothing of ours; spoken to by arguments, answering in JSON lines.

produce ENDPOINT TOPIC FIRST COUNT | simple ENDPOINT TOPIC GROUP TAG COUNT | nack ENDPOINT TOPIC GROUP | delay ENDPOINT TOPIC GROUP
push ENDPOINT TOPIC GROUP [fail-first]
"""

import json
import sys
import threading
import time

from rocketmq import (
    ClientConfiguration,
    ConsumeResult,
    Credentials,
    FilterExpression,
    Message,
    MessageListener,
    Producer,
    PushConsumer,
    SimpleConsumer,
)

SPOKEN = threading.Lock()  # listeners run in many threads; a line is one line


def say(**fields: object) -> None:
    with SPOKEN:
        print(json.dumps(fields), flush=True)


def configuration(endpoint: str) -> ClientConfiguration:
    return ClientConfiguration(endpoint, Credentials())


def produce(endpoint: str, topic: str, first: str, count: str) -> None:
    producer = Producer(configuration(endpoint), (topic,))
    producer.startup()
    pending = []
    for number in range(int(first), int(first) + int(count)):
        message = Message()
        message.topic, message.body = topic, f"body-{number}".encode()
        message.tag, message.keys = ("even" if number % 2 == 0 else "odd"), f"key-{number}"
        message.add_property("number", str(number))
        if number % 10 == 0:
            pending.append(producer.send_async(message))
        else:
            say(sent=number, id=producer.send(message).message_id)
    for future in pending:
        say(sent=-1, id=future.result(timeout=10).message_id)
    producer.shutdown()
    say(done=True)


def simple(endpoint: str, topic: str, group: str, tag: str, count: str) -> None:
    consumer = SimpleConsumer(configuration(endpoint), group, {topic: FilterExpression(tag)}, await_duration=5)
    consumer.startup()
    say(ready=True)
    got, empty = 0, 0
    while got < int(count) and empty < 20:
        messages = consumer.receive(32, 30)
        empty = 0 if messages else empty + 1
        for message in messages or ():
            got += 1
            say(got=int(message.properties["number"]), tag=message.tag, keys=list(message.keys), body=message.body.decode(),
                attempt=message.delivery_attempt)  # fmt: skip
            consumer.ack(message)
    consumer.shutdown()
    say(done=True)


def nack(endpoint: str, topic: str, group: str) -> None:
    """Take one message, make it visible again in a second, take it again, acknowledge."""
    consumer = SimpleConsumer(configuration(endpoint), group, {topic: FilterExpression("*")}, await_duration=1)
    consumer.startup()
    message = one(consumer)
    say(got=int(message.properties["number"]), attempt=message.delivery_attempt)
    begun = time.monotonic()
    consumer.change_invisible_duration(message, 1)
    again = one(consumer)
    say(got=int(again.properties["number"]), attempt=again.delivery_attempt, after_s=time.monotonic() - begun)
    consumer.ack(again)
    consumer.shutdown()
    say(done=True)


def delay(endpoint: str, topic: str, group: str) -> None:
    """Send three messages for later, take one of them back, receive the others."""
    consumer = SimpleConsumer(configuration(endpoint), group, {topic: FilterExpression("*")}, await_duration=1)
    consumer.startup()
    producer = Producer(configuration(endpoint), (topic,))
    producer.startup()
    receipts, due = [], []
    for number in range(3):
        message = Message()
        message.topic, message.body = topic, b"later"
        message.add_property("number", str(number))
        message.delivery_timestamp = int(time.time()) + 3  # this SDK counts in whole seconds
        due.append(message.delivery_timestamp)
        receipts.append(producer.send(message))
    say(recalled=producer.recall_message(topic, receipts[1].recall_handle) == receipts[1].message_id)
    for _ in range(2):
        got = one(consumer)
        number = int(got.properties["number"])
        say(got=number, after_due_s=time.time() - due[number])
        consumer.ack(got)
    time.sleep(1)
    say(left=len(consumer.receive(32, 30) or ()))
    producer.shutdown()
    consumer.shutdown()
    say(done=True)


def one(consumer: SimpleConsumer) -> Message:
    for _ in range(40):
        messages = consumer.receive(1, 30)
        if messages:
            return messages[0]
    raise SystemExit("nothing received")


def push(endpoint: str, topic: str, group: str, mode: str = "") -> None:
    failed: set[str] = set()

    class Listener(MessageListener):
        def consume(self, message: Message) -> ConsumeResult:
            number = message.properties["number"]
            if mode == "fail-first" and number not in failed:
                failed.add(number)
                say(failed=int(number), attempt=message.delivery_attempt)
                return ConsumeResult.FAILURE
            say(got=int(number), attempt=message.delivery_attempt)
            return ConsumeResult.SUCCESS

    consumer = PushConsumer(configuration(endpoint), group, Listener(), {topic: FilterExpression("*")})
    consumer.startup()
    say(ready=True)
    stop = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.readline(), stop.set()), daemon=True).start()
    stop.wait()
    begun = time.monotonic()
    consumer.shutdown()
    say(done=True, shutdown_s=time.monotonic() - begun)


if __name__ == "__main__":
    {"produce": produce, "simple": simple, "nack": nack, "delay": delay, "push": push}[sys.argv[1]](*sys.argv[2:])
