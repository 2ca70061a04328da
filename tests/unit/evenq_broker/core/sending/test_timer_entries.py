"""Entries of delayed and half messages are those that protobuf would make."""

from evenq_broker.core.sending.timer_entries import delayed_entry, half_entry
from evenq_broker.core.state.frames import OK_STATUS

from evenq.wire.stubs.apache.rocketmq.v2 import definition_pb2, service_pb2


def test_an_entry_has_the_message_id_and_the_handle_of_its_kind() -> None:
    answer = service_pb2.SendMessageResponse.FromString(
        OK_STATUS + delayed_entry(b"one", "d1.a.00") + half_entry(b"two", "t1.a.00")
    )
    assert answer.status.code == definition_pb2.OK
    assert [entry.status.code for entry in answer.entries] == [definition_pb2.OK] * 2
    delayed, half = answer.entries
    assert (delayed.message_id, delayed.recall_handle, delayed.transaction_id) == ("one", "d1.a.00", "")
    assert (half.message_id, half.recall_handle, half.transaction_id) == ("two", "", "t1.a.00")
