"""Without an observer, the stand-ins change nothing and let errors pass."""

from __future__ import annotations

import pytest

from evenq.client.core.clients.observer import (
    OBSERVED,
    ClientIdentity,
    observed_receive,
    observed_send,
    observed_settle,
)
from evenq.model import Message

CLIENT = ClientIdentity(client_id="c", endpoint="a:8081")


def test_nothing_is_observed_at_first() -> None:
    assert OBSERVED.observer is None
    message = Message(topic="t", body=b"b")
    with observed_send(CLIENT, message, transaction=True) as sending:
        assert sending.message is message
        sending.stored("id")
        sending.failed(KeyError())
        sending.follow(None)
    with observed_receive(CLIENT) as receiving:
        assert receiving.received([]) == []
    with observed_settle(CLIENT, "ack"):
        pass


@pytest.mark.parametrize("begin", [observed_receive, lambda client: observed_settle(client, "ack")])
def test_an_error_leaves_the_block(begin: object) -> None:
    with pytest.raises(KeyError), begin(CLIENT):  # type: ignore[operator]
        raise KeyError("it passes")
