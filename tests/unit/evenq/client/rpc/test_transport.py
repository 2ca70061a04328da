"""The first server that answers ends the question."""

from __future__ import annotations

import asyncio

import pytest

from evenq.client.rpc.transport import first_answer
from evenq.errors import ConnectionFailed, Forbidden, RequestTimeout, TlsFailed


def outcome(*targets: str, passed: list[str] | None = None) -> bytes:
    """Of servers by their names."""

    async def ask(target: str) -> bytes:
        match target.rstrip("0123456789"):
            case "silent":
                await asyncio.sleep(600)
            case "gone":
                raise ConnectionFailed(f"no server listens at {target}")
            case "late":
                raise RequestTimeout(f"no answer from {target}")
            case "untrusted":
                raise TlsFailed("it wants a certificate")
            case "strict":
                raise Forbidden("not you")
        return target.encode()

    async def story() -> bytes:
        async with asyncio.timeout(60):
            return await first_answer(targets, ask, passed_over=[].append if passed is None else passed.append)

    return asyncio.run(story())


def test_a_server_that_is_silent_is_not_waited_for() -> None:
    passed: list[str] = []
    assert outcome("silent1", "silent2", "good", passed=passed) == b"good"
    assert passed == ["silent1", "silent2"], "the next question begins with the one that answered"


def test_a_server_that_fails_is_followed_by_the_next_one() -> None:
    passed: list[str] = []
    assert outcome("gone", "late", "good", "silent", passed=passed) == b"good"
    assert passed == ["gone", "late"]
    assert outcome("good", "gone") == b"good"


def test_when_all_fail_the_last_error_is_told_and_a_refusal_ends_the_question() -> None:
    with pytest.raises(ConnectionFailed, match="gone2"):
        outcome("gone1", "late", "gone2")
    with pytest.raises(Forbidden):
        outcome("gone", "strict", "good")


def test_when_all_fail_trouble_with_tls_is_told_before_that_nobody_listens() -> None:
    """Of the copies of a broker only the leader listens: its error is the one that helps."""
    for order in (("untrusted", "gone", "late"), ("gone", "untrusted", "gone")):
        with pytest.raises(TlsFailed, match="certificate"):
            outcome(*order)
    assert outcome("untrusted", "gone", "good") == b"good"
