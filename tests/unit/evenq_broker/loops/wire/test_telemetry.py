"""Commands on telemetry streams: the nonce that brings an answer to its question."""

from __future__ import annotations

import pytest
from evenq_broker.loops.wire.telemetry import TelemetryCommand, lite_topic_ended, nonce_of


@pytest.mark.parametrize(
    "field",
    [
        "thread_stack_trace",
        "verify_message_result",
        "print_thread_stack_trace_command",
        "verify_message_command",
    ],
)
def test_an_answer_brings_its_nonce_back_in_the_field_of_each_sdk(field: str) -> None:
    command = TelemetryCommand()
    getattr(command, field).nonce = "n"
    assert nonce_of(command) == "n"


def test_what_is_no_answer_has_no_nonce() -> None:
    settings = TelemetryCommand()
    settings.settings.SetInParent()
    assert nonce_of(settings) is None
    assert nonce_of(TelemetryCommand()) is None


def test_the_end_of_a_lite_subscription_names_the_lite_topic() -> None:
    command = TelemetryCommand.FromString(lite_topic_ended("chat-1"))
    assert command.notify_unsubscribe_lite_command.lite_topic == "chat-1"
