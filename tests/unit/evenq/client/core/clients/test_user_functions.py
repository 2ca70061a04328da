"""Functions of users that could not be called are refused when they are handed in."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any
from unittest.mock import AsyncMock, Mock

import pytest

import evenq
from evenq.client.core.clients.user_functions import check_function
from evenq.errors import BadRequest


class Object:
    def __call__(self, messages: object) -> None: ...


class AsyncObject:
    async def __call__(self, messages: object) -> None: ...


async def coroutine(messages: object) -> None: ...


def generator(messages: object) -> object:
    yield messages


def two(one: object, other: object) -> None: ...


@pytest.mark.parametrize("good", [Object(), print, len, lambda *_: None, lambda messages, log=None: None, [].append])
def test_what_takes_the_messages_passes(good: object) -> None:
    check_function("listener", good, "messages", awaited_by="evenq.aio.PushConsumer")


@pytest.mark.parametrize(
    ("bad", "fix"),
    [
        (coroutine, "evenq.aio.PushConsumer"),
        (AsyncObject(), "evenq.aio.PushConsumer"),
        (partial(coroutine), "evenq.aio.PushConsumer"),
        (generator, "yield"),
        (lambda: None, r"def listener\(messages\): \.\.\."),
        (two, r"def listener\(messages\): \.\.\."),
        ("print", "not a function"),
        (None, "not a function"),
    ],
)
def test_what_cannot_be_called_so_is_refused_with_the_fix(bad: object, fix: str) -> None:
    with pytest.raises(BadRequest, match=fix):
        check_function("listener", bad, "messages", awaited_by="evenq.aio.PushConsumer")


def test_a_coroutine_function_passes_where_one_is_awaited() -> None:
    check_function("listener", coroutine, "messages")


NAMES = {"group": "g", "subscriptions": {"t": "*"}}


@pytest.mark.parametrize(
    ("make", "arguments"),
    [
        (evenq.PushConsumer, {**NAMES, "listener": coroutine}),
        (evenq.PushConsumer, {**NAMES, "listener": lambda: None}),
        (evenq.PushConsumer, {**NAMES, "listener": Object(), "on_rebalance": lambda gained: None}),
        (evenq.PushConsumer, {**NAMES, "listener": Object(), "on_error": lambda: None}),
        (evenq.PullConsumer, {**NAMES, "on_rebalance": Object()}),
        (evenq.LitePushConsumer, {"group": "g", "topic": "t", "listener": coroutine}),
        (evenq.LitePushConsumer, {"group": "g", "topic": "t", "listener": Object(), "on_unsubscribed": two}),
        (evenq.Producer, {"checker": two}),
        (evenq.aio.PushConsumer, {**NAMES, "listener": lambda: None}),
        (evenq.aio.PushConsumer, {**NAMES, "listener": generator}),
        (evenq.aio.PullConsumer, {**NAMES, "on_rebalance": Object()}),
        (evenq.aio.LitePushConsumer, {"group": "g", "topic": "t", "listener": two}),
        (evenq.PushConsumer, {**NAMES, "listener": Object(), "options": evenq.PullOptions()}),
        (evenq.PullConsumer, {**NAMES, "options": evenq.PushOptions()}),
        (evenq.SimpleConsumer, {**NAMES, "options": evenq.PushOptions()}),
        (evenq.Producer, {"options": evenq.PushOptions()}),
        (evenq.SimpleConsumer, {"group": "g", "subscriptions": {}}),
        (evenq.aio.SimpleConsumer, {"group": "g", "subscriptions": {}}),
        (evenq.SimpleConsumer, {"group": "g", "subscriptions": "orders"}),
        (evenq.PushConsumer, {"group": "g", "subscriptions": ["orders"], "listener": Object()}),
        (evenq.PushConsumer, {"group": "g", "subscriptions": {"orders": None}, "listener": Object()}),
        (evenq.PushConsumer, {"group": "g", "subscriptions": {"orders": ["a"]}, "listener": Object()}),
        (evenq.PushConsumer, {"group": "g", "subscriptions": {"orders": "a | b"}, "listener": Object()}),
        (evenq.PushConsumer, {"group": "g", "subscriptions": {5: "*"}, "listener": Object()}),
        (evenq.PushConsumer, {"group": 5, "subscriptions": {"t": "*"}, "listener": Object()}),
    ],
)
def test_every_client_refuses_at_construction(make: type, arguments: dict[str, object]) -> None:
    with pytest.raises(BadRequest):
        make(**arguments)


def test_a_mock_is_a_function_like_any_other() -> None:
    """Whatever is asked of it, it has: also a `func`, for ever."""
    check_function("listener", Mock(), "messages", awaited_by="evenq.aio.PushConsumer")
    with pytest.raises(BadRequest, match="coroutine function"):
        check_function("listener", AsyncMock(), "messages", awaited_by="evenq.aio.PushConsumer")


def one_message(message: evenq.ReceivedMessage) -> None: ...


def list_of_bodies(messages: list[bytes]) -> None: ...


def text(messages: str) -> None: ...


class Method:
    def listen(self, message: evenq.ReceivedMessage) -> None: ...


@pytest.mark.parametrize(
    ("bad", "named"),
    [
        (one_message, "parameter message is annotated as ReceivedMessage"),
        (list_of_bodies, r"parameter messages is annotated as list\[bytes\]"),
        (text, "parameter messages is annotated as str"),
        (Method().listen, "parameter message is annotated as ReceivedMessage"),
        (partial(one_message), "parameter message is annotated as ReceivedMessage"),
        (Method, "is the class Method"),
    ],
)
def test_a_listener_for_something_else_than_a_list_of_messages_is_refused_with_the_right_signature(
    bad: object, named: str
) -> None:
    with pytest.raises(BadRequest, match=named) as caught:
        evenq.PushConsumer(group="g", subscriptions={"t": "*"}, listener=bad)  # type: ignore[arg-type]  # that is the mistake
    assert "`def listener(messages: list[evenq.ReceivedMessage]): ...`" in str(caught.value)


def sequence(messages: Sequence[evenq.ReceivedMessage]) -> None: ...


def anything(messages: Any) -> None: ...


def bare(messages: list) -> None: ...  # type: ignore[type-arg]  # as many write it


def several(*messages: list[evenq.ReceivedMessage]) -> None: ...


def either(messages: list[evenq.ReceivedMessage] | None) -> None: ...


def unknown(messages: NotImported) -> None: ...  # type: ignore[name-defined]  # noqa: F821 - a name of `if TYPE_CHECKING`


@pytest.mark.parametrize("good", [sequence, anything, bare, several, either, unknown, print])
def test_annotations_that_a_list_of_messages_fits_pass(good: object) -> None:
    check_function("listener", good, "messages", items=evenq.ReceivedMessage)
