"""Commands on the telemetry streams of v2 clients, as loops send them and read their answers (wire contract 4.5)."""

from __future__ import annotations

from evenq.wire.stubs.apache.rocketmq.v2 import definition_pb2, service_pb2

TelemetryCommand = service_pb2.TelemetryCommand
"""A command or its answer; made and read by the calls, the loops pass it on."""
LITE_CLIENTS = (definition_pb2.LITE_PUSH_CONSUMER, definition_pb2.LITE_SIMPLE_CONSUMER)
"""Types of clients that understand `lite_topic_ended`."""
_NONCED = frozenset(
    {
        "thread_stack_trace",
        "verify_message_result",
        "print_thread_stack_trace_command",
        "verify_message_command",
    }
)


def nonce_of(command: TelemetryCommand) -> str | None:
    """Returns the nonce that an answer repeats, from Node.js in the command's own field; None: it is not an answer."""
    kind = command.WhichOneof("command")
    return getattr(command, kind).nonce if kind in _NONCED else None


def lite_topic_ended(name: str) -> bytes:
    """Notifies a client that its subscription of a lite topic ended."""
    command = TelemetryCommand()
    command.notify_unsubscribe_lite_command.lite_topic = name
    return command.SerializeToString()
