"""An idempotent consumer.

Delivery is at least once: after a crash, or when a producer repeats a send, a message may arrive twice. A consumer that
writes to a database makes that harmless: it writes the key of the message and its effect in one transaction, and the
unique key refuses the second copy. Delete old keys after the retention of the topic.

Prints:

    received 6 messages, 3 of them for the first time
    stock: 3 chairs, 5 tables
"""

from __future__ import annotations

import sqlite3
import threading

import evenq

SCHEMA = """
CREATE TABLE seen (key TEXT PRIMARY KEY);
CREATE TABLE stock (item TEXT PRIMARY KEY, pieces INTEGER);
"""
DELIVERIES = [("d-1", "chairs", 1), ("d-2", "tables", 5), ("d-3", "chairs", 2)]


def book(database: sqlite3.Connection, message: evenq.ReceivedMessage) -> bool:
    """Books a delivery unless it was booked before; returns whether it was new."""
    item, pieces = message.body.decode().split()
    with database:
        new = database.execute("INSERT OR IGNORE INTO seen VALUES (?)", (message.keys[0],)).rowcount == 1
        if new:
            change = "INSERT INTO stock VALUES (?, ?) ON CONFLICT DO UPDATE SET pieces = pieces + excluded.pieces"
            database.execute(change, (item, int(pieces)))
    return new


def main() -> None:
    database = sqlite3.connect(":memory:", check_same_thread=False)
    database.executescript(SCHEMA)
    results: list[bool] = []
    lock, done = threading.Lock(), threading.Event()

    def handle(messages: list[evenq.ReceivedMessage]) -> None:
        with lock:  # the listener runs in several threads, this connection in one at a time
            results.extend(book(database, message) for message in messages)
        if len(results) == 2 * len(DELIVERIES):
            done.set()

    consumer = evenq.PushConsumer(
        group="warehouse", listener=handle, subscriptions={"deliveries": "*"}, start_from="FIRST"
    )
    with consumer, evenq.Producer() as producer:
        for key, item, pieces in DELIVERIES * 2:  # a careless sender: everything twice
            producer.send(evenq.Message(topic="deliveries", body=f"{item} {pieces}".encode(), keys=(key,)))
        done.wait(60)
    print(f"received {len(results)} messages, {sum(results)} of them for the first time")
    rows = database.execute("SELECT pieces, item FROM stock ORDER BY item").fetchall()
    print("stock: " + ", ".join(f"{pieces} {item}" for pieces, item in rows))


if __name__ == "__main__":
    main()
