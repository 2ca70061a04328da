"""The requests that other tests send are what they say."""

from evenq_proofs.blocks import block, place


def test_a_block_names_its_queue_and_gives_each_message_an_id() -> None:
    request = block(place(3), "x", "y", message_group="g")
    assert (request.queue.topic, request.queue.broker_name, request.queue.queue_id) == ("t", "a", 3)
    reported = [(m.body, m.system_properties.message_id, m.system_properties.message_group) for m in request.messages]
    assert reported == [(b"x", "id-x", "g"), (b"y", "id-y", "g")]
    assert not block(place(0), "x").messages[0].system_properties.HasField("message_group")
