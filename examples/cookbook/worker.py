"""A worker in a container.

`run()` joins the group, and returns after SIGTERM, which a container gets when it is stopped. Before it returns,
running calls of the listener end, their progress is committed, and the queues move to the other members. So a rolling
update repeats no message. Address, keys and TLS come from the environment (`EVENQ_ENDPOINT`, `EVENQ_ACCESS_KEY`,
`EVENQ_SECRET_KEY`, `EVENQ_TLS_CA`), so one image runs everywhere.

Start Python itself, as in `CMD ["python", "worker.py"]`: a shell does not forward SIGTERM.
"""

from __future__ import annotations

import evenq


def send_mails(messages: list[evenq.ReceivedMessage]) -> None:
    for message in messages:
        print(f"mail to {message.body.decode()}", flush=True)


def main() -> None:
    consumer = evenq.PushConsumer(group="mailer", listener=send_mails, subscriptions={"mails": "*"}, start_from="FIRST")
    print("worker started", flush=True)
    consumer.run()
    print("worker stopped, progress is committed", flush=True)


if __name__ == "__main__":
    main()
