"""Commands on the telemetry streams of v2 clients, as loops send them and read their answers (wire contract 4.5)."""

from __future__ import annotations

from evenq.wire.stubs.apache.rocketmq.v2 import definition_pb2, service_pb2

__all__ = ["LITE_CLIENTS", "TelemetryCommand", "lite_topic_ended", "nonce_of"]

TelemetryCommand = service_pb2.TelemetryCommand
"""A command or its answer; made and read by the calls, the loops pass it on."""
LITE_CLIENTS = (definition_pb2.LITE_PUSH_CONSUMER, definition_pb2.LITE_SIMPLE_CONSUMER)
"""Kinds of clients that understand `lite_topic_ended`."""
_NONCED = frozenset(
    {
        "thread_stack_trace",
        "verify_message_result",
        "print_thread_stack_trace_command",
        "verify_message_command",
    }
)


def nonce_of(command: TelemetryCommand) -> str | None:
    """The nonce that an answer brings back, from Node.js in the field of the command itself; None: it is no answer."""
    kind = command.WhichOneof("command")
    return getattr(command, kind).nonce if kind in _NONCED else None


def lite_topic_ended(name: str) -> bytes:
    """Tells a client that its subscription of a lite topic is over."""
    command = TelemetryCommand()
    command.notify_unsubscribe_lite_command.lite_topic = name
    return command.SerializeToString()
