"""A transactional outbox: a row of your database and its message, both or none.

The order and its message are written in one transaction of the database. A relay sends the rows of the table `outbox`
in their order, and deletes each one when its message is stored. A relay that dies in between sends that message again
after its restart, so consumers compare the key. The database can be any with transactions; run one relay at a time.

The alternative without a table and a relay is a transaction of evenq: docs/guides/transactions.md.

Prints:

    order-1 and order-2 are in the database, order-3 was rolled back
    relayed order-1
    relayed order-2
    0 rows left in the outbox
"""

from __future__ import annotations

import sqlite3

import evenq

SCHEMA = """
CREATE TABLE orders (id TEXT PRIMARY KEY, amount INTEGER CHECK (amount > 0));
CREATE TABLE outbox (number INTEGER PRIMARY KEY AUTOINCREMENT, key TEXT, body BLOB);
"""


def place_order(database: sqlite3.Connection, order: str, amount: int) -> None:
    """Writes the order and the message that announces it, in one transaction."""
    with database:
        database.execute("INSERT INTO outbox (key, body) VALUES (?, ?)", (order, f"{order} placed".encode()))
        database.execute("INSERT INTO orders VALUES (?, ?)", (order, amount))


def relay(database: sqlite3.Connection, producer: evenq.Producer) -> None:
    """Sends all messages of the outbox, the oldest first. Call it after each commit, and every few seconds."""
    for number, key, body in database.execute("SELECT number, key, body FROM outbox ORDER BY number").fetchall():
        producer.send(evenq.Message(topic="outbox-orders", body=body, keys=(key,)))
        with database:
            database.execute("DELETE FROM outbox WHERE number = ?", (number,))
        print(f"relayed {key}")


def main() -> None:
    database = sqlite3.connect(":memory:")
    database.executescript(SCHEMA)
    place_order(database, "order-1", 30)
    place_order(database, "order-2", 12)
    try:
        place_order(database, "order-3", -5)  # the database refuses the row, and the message goes with it
    except sqlite3.IntegrityError:
        print("order-1 and order-2 are in the database, order-3 was rolled back")
    with evenq.Producer() as producer:
        relay(database, producer)
    (left,) = database.execute("SELECT count(*) FROM outbox").fetchone()
    print(f"{left} rows left in the outbox")


if __name__ == "__main__":
    main()
