"""A process that uses the official Python SDK and nothing of ours; spoken to by arguments, answering in JSON lines.

traced ENDPOINT TOPIC GROUP TRACEPARENT: sends one message with this trace context, gives it back once, then acknowledges it
produce ENDPOINT TOPIC FIRST COUNT | simple ENDPOINT TOPIC GROUP TAG COUNT | nack ENDPOINT TOPIC GROUP | delay ENDPOINT TOPIC GROUP
push ENDPOINT TOPIC GROUP [fail-first | "SQL expression"]. TAG may be an "SQL expression", too.
prioritized ENDPOINT TOPIC GROUP PRIORITIES: sends one of each, takes them all one by one
lite-produce ENDPOINT TOPIC LITE,LITE,... COUNT | lite-simple, lite-push ENDPOINT TOPIC GROUP LITE,LITE,... COUNT [forget LITE]
transact ENDPOINT TOPIC FIRST COUNT: commits each third, rolls back the next, leaves the last open | checker ENDPOINT TOPIC
steady ENDPOINT TOPIC GROUP: sends one after the other and takes them, whatever fails, until it reads a line; says when
(`at`, seconds of the machine's clock)
work ENDPOINT TOPIC GROUP WORK_MS: a simple consumer that works this long on each message before it acknowledges it,
until it reads a line
member ENDPOINT WORK_MS TOPIC GROUP TOPIC GROUP ...: push consumers that work this long on each message, until it reads a line
stream ENDPOINT NAME COUNT PACE_MS FIFO_TOPIC NORMAL_TOPIC: COUNT streams of each topic, those of the first one are message
groups; repeats each send until it is answered with OK, until it reads a line
"""

import json
import os
import sys
import threading
import time

from rocketmq import (
    ClientConfiguration,
    ConsumeResult,
    Credentials,
    FilterExpression,
    LitePushConsumer,
    LiteSimpleConsumer,
    Message,
    MessageListener,
    Producer,
    PushConsumer,
    SimpleConsumer,
    TransactionChecker,
    TransactionResolution,
)
from rocketmq.grpc_protocol import FilterType
from rocketmq.v5.exception import ClientException, LiteSubscriptionQuotaExceededException

TLS = bool(os.environ.get("PEER_TLS"))  # of produce and simple
SPOKEN = threading.Lock()  # listeners run in many threads; a line is one line


def say(**fields: object) -> None:
    with SPOKEN:
        print(json.dumps(fields), flush=True)


def configuration(endpoint: str) -> ClientConfiguration:
    keys = os.environ.get("PEER_ACCESS_KEY", ""), os.environ.get("PEER_SECRET_KEY", "")
    return ClientConfiguration(endpoint, Credentials(*keys), os.environ.get("PEER_NAMESPACE", ""))


def wanted(text: str) -> FilterExpression:
    return FilterExpression(text[4:], FilterType.SQL) if text.startswith("SQL ") else FilterExpression(text)


def produce(endpoint: str, topic: str, first: str, count: str) -> None:
    producer = Producer(configuration(endpoint), (topic,), tls_enable=TLS)
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
        say(sent=-1, id=future.result(timeout=60).message_id)
    producer.shutdown()
    say(done=True)


def simple(endpoint: str, topic: str, group: str, tag: str, count: str) -> None:
    consumer = SimpleConsumer(configuration(endpoint), group, {topic: wanted(tag)}, await_duration=5, tls_enable=TLS)
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


def traced(endpoint: str, topic: str, group: str, context: str) -> None:
    """Send one message with a trace context, take it, give it back, take it again, acknowledge."""
    producer = Producer(configuration(endpoint), (topic,))
    producer.startup()
    sent = Message()
    sent.topic, sent.body = topic, b"traced"
    sent.add_property("traceparent", context)
    producer.send(sent)
    consumer = SimpleConsumer(configuration(endpoint), group, {topic: FilterExpression("*")}, await_duration=1)
    consumer.startup()
    message = one(consumer)
    say(attempt=message.delivery_attempt, id=message.message_id, client_id=consumer.client_id)
    consumer.change_invisible_duration(message, 1)
    again = one(consumer)
    say(attempt=again.delivery_attempt, id=again.message_id, client_id=consumer.client_id)
    consumer.ack(again)
    producer.shutdown()
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

    filters = {topic: wanted(mode if mode.startswith("SQL ") else "*")}
    consumer = PushConsumer(configuration(endpoint), group, Listener(), filters)
    consumer.startup()
    say(ready=True)
    stop = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.readline(), stop.set()), daemon=True).start()
    stop.wait()
    begun = time.monotonic()
    consumer.shutdown()
    say(done=True, shutdown_s=time.monotonic() - begun)


def prioritized(endpoint: str, topic: str, group: str, priorities: str) -> None:
    producer = Producer(configuration(endpoint), (topic,))
    producer.startup()
    for number in priorities.split(","):
        message = Message()
        message.topic, message.body, message.priority = topic, b"x", int(number)
        producer.send(message)
    producer.shutdown()
    consumer = SimpleConsumer(configuration(endpoint), group, {topic: FilterExpression("*")}, await_duration=1)
    consumer.startup()
    for _ in priorities.split(","):
        got = one(consumer)
        say(got=got.priority)
        consumer.ack(got)
    consumer.shutdown()
    say(done=True)


def lite_produce(endpoint: str, topic: str, names: str, count: str) -> None:
    producer = Producer(configuration(endpoint), (topic,))
    producer.startup()
    for number in range(int(count)):
        for name in names.split(","):
            message = Message()
            message.topic, message.body, message.lite_topic = topic, str(number).encode(), name
            say(sent=number, id=producer.send(message).message_id)
    producer.shutdown()
    say(done=True)


def lite_simple(endpoint: str, topic: str, group: str, names: str, count: str) -> None:
    consumer = LiteSimpleConsumer(topic, configuration(endpoint), group, await_duration=5)
    consumer.startup()
    wanted_names = names.split(",")
    for _ in range(100):  # this SDK has a quota of 0 until its settings are there, and does not wait for them
        try:
            consumer.subscribe_lite(wanted_names[0])
        except LiteSubscriptionQuotaExceededException:
            time.sleep(0.05)
        else:
            break
    for name in wanted_names:
        consumer.subscribe_lite(name)
    try:
        consumer.subscribe_lite("x" * 65)
    except ClientException as error:
        say(refused=str(error))
    say(ready=True)
    got = empty = 0
    while got < int(count) and empty < 4:
        messages = consumer.receive(4, 30)
        empty = 0 if messages else empty + 1
        for message in messages or ():
            got += 1
            say(got=[message.lite_topic, int(message.body)], topic=message.topic, attempt=message.delivery_attempt)
            consumer.ack(message)
    consumer.unsubscribe_lite(wanted_names[0])
    consumer.shutdown()
    say(done=True)


def lite_push(endpoint: str, topic: str, group: str, names: str, mode: str = "") -> None:
    failed: set[tuple[str, int]] = set()

    class Listener(MessageListener):
        def consume(self, message: Message) -> ConsumeResult:
            place = (message.lite_topic, int(message.body))
            if mode == "fail-first" and place not in failed:
                failed.add(place)
                say(failed=list(place), attempt=message.delivery_attempt)
                return ConsumeResult.FAILURE
            say(got=list(place), topic=message.topic, attempt=message.delivery_attempt)
            return ConsumeResult.SUCCESS

    consumer = LitePushConsumer(configuration(endpoint), group, topic, Listener())
    consumer.startup()
    for name in names.split(","):
        consumer.subscribe_lite(name)
    say(ready=True)
    sys.stdin.readline()
    consumer.shutdown()
    say(done=True)


class Checker(TransactionChecker):
    def check(self, message: Message) -> TransactionResolution:
        number = int(message.properties["number"])
        say(asked=number, body=message.body.decode(), attempt=message.delivery_attempt)
        return TransactionResolution.COMMIT if number % 2 else TransactionResolution.ROLLBACK


def transact(endpoint: str, topic: str, first: str, count: str) -> None:
    producer = Producer(configuration(endpoint), (topic,), checker=Checker())
    producer.startup()
    for number in range(int(first), int(first) + int(count)):
        transaction = producer.begin_transaction()
        message = Message()
        message.topic, message.body, message.tag, message.keys = (
            topic,
            f"body-{number}".encode(),
            "paid",
            f"key-{number}",
        )
        message.add_property("number", str(number))
        receipt = producer.send(message, transaction)
        if number % 3 == 0:
            transaction.commit()
            transaction.commit()
        elif number % 3 == 1:
            transaction.rollback()
        say(sent=number, id=receipt.message_id, transaction=receipt.transaction_id)
    producer.shutdown()
    say(done=True)


def checker(endpoint: str, topic: str) -> None:
    producer = Producer(configuration(endpoint), (topic,), checker=Checker())
    producer.startup()
    say(ready=True)
    sys.stdin.readline()
    producer.shutdown()
    say(done=True)


def work(endpoint: str, topic: str, group: str, work_ms: str) -> None:
    consumer = SimpleConsumer(configuration(endpoint), group, {topic: FilterExpression("*")}, await_duration=2)
    consumer.startup()
    say(ready=True)
    stop = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.readline(), stop.set()), daemon=True).start()
    while not stop.is_set():
        try:
            messages = consumer.receive(16, 60)
        except Exception as error:  # noqa: BLE001  the SDK raises many kinds
            say(failed=str(error))
            time.sleep(0.1)
            continue
        for message in messages or ():
            number = int(message.properties["number"])
            time.sleep(int(work_ms) / 1000)
            say(got=number, attempt=message.delivery_attempt)
            try:
                consumer.ack(message)
            except Exception as error:  # noqa: BLE001
                say(unacked=number, error=str(error))
    consumer.shutdown()
    say(done=True)


def steady(endpoint: str, topic: str, group: str) -> None:
    stop, pause_s = threading.Event(), 0.1

    def send() -> None:
        producer = Producer(configuration(endpoint), (topic,))
        producer.startup()
        number = 0
        while not stop.wait(pause_s):
            message = Message()
            message.topic, message.body = topic, str(number).encode()
            try:
                producer.send(message)
                say(sent=number, at=time.monotonic())
            except Exception as error:  # noqa: BLE001  the SDK raises many kinds
                say(refused=number, error=str(error))
            number += 1
        producer.shutdown()

    def take() -> None:
        consumer = SimpleConsumer(configuration(endpoint), group, {topic: FilterExpression("*")}, await_duration=2)
        consumer.startup()
        while not stop.is_set():
            try:
                for message in consumer.receive(16, 15) or ():
                    say(got=int(message.body), attempt=message.delivery_attempt, at=time.monotonic())
                    consumer.ack(message)
            except Exception as error:  # noqa: BLE001
                say(failed=str(error))
                stop.wait(pause_s)
        consumer.shutdown()

    threads = [threading.Thread(target=work) for work in (send, take)]
    for thread in threads:
        thread.start()
    sys.stdin.readline()
    stop.set()
    for thread in threads:
        thread.join()
    say(done=True)


def now_us() -> int:
    return time.time_ns() // 1000


class Worker(MessageListener):
    """Says when it has a message, and when it is done with it."""

    def __init__(self, group: str, work_ms: str) -> None:
        self._group, self._work_s = group, int(work_ms) / 1000

    def consume(self, message: Message) -> ConsumeResult:
        body = message.body.decode()
        number = message.properties["number"]
        say(client=self._group, body=body, got=number, attempt=message.delivery_attempt, at_us=now_us())
        time.sleep(self._work_s)
        say(client=self._group, worked=body, at_us=now_us())
        return ConsumeResult.SUCCESS


def member(endpoint: str, work_ms: str, *places: str) -> None:
    consumers = {
        group: PushConsumer(configuration(endpoint), group, Worker(group, work_ms), {topic: FilterExpression("*")})
        for topic, group in zip(places[::2], places[1::2], strict=True)
    }
    for consumer in consumers.values():
        consumer.startup()
    say(ready=True)
    sys.stdin.readline()
    for group, consumer in consumers.items():
        consumer.shutdown()
        say(closed=group, at_us=now_us())
    say(done=True)


def stream(endpoint: str, name: str, count: str, pace_ms: str, fifo: str, normal: str) -> None:
    stop = threading.Event()
    producer = Producer(configuration(endpoint), (fifo, normal))
    producer.startup()

    def send(topic: str, of_stream: str) -> None:
        number = 0
        while not stop.wait(int(pace_ms) / 1000):
            message = Message()
            message.topic, message.body = topic, f"{of_stream}:{number}".encode()
            message.add_property("number", str(number))
            if topic == fifo:
                message.message_group = of_stream
            begun, line = time.monotonic(), {"stream": of_stream}
            try:
                producer.send(message)
                line["sent"] = number
            except Exception as error:  # noqa: BLE001  the SDK raises many kinds
                line.update(refused=number, why=str(error))
            say(**line, took_ms=int((time.monotonic() - begun) * 1000), at_us=now_us())
            number += "sent" in line

    threads = [
        threading.Thread(target=send, args=(topic, f"{name}-{kind}-{at}"))
        for topic, kind in ((fifo, "fifo"), (normal, "normal"))
        for at in range(int(count))
    ]
    for thread in threads:
        thread.start()
    say(ready=True)
    sys.stdin.readline()
    stop.set()
    for thread in threads:
        thread.join()
    producer.shutdown()
    say(done=True)


if __name__ == "__main__":
    {
        "produce": produce, "simple": simple, "nack": nack, "delay": delay, "push": push, "transact": transact,
        "checker": checker, "prioritized": prioritized, "lite-produce": lite_produce, "lite-simple": lite_simple,
        "lite-push": lite_push, "steady": steady, "work": work, "member": member, "stream": stream, "traced": traced,
    }[sys.argv[1]](*sys.argv[2:])  # fmt: skip
