"""An append is the message that is read later: nothing is copied."""

from evenq.store.log.messages import Append, StoredMessage


def test_an_append_has_no_place_yet_and_is_what_hot_reads_give(message):
    made = message(head=b"head", system=b"sys")
    assert isinstance(made, StoredMessage)
    assert (made.queue_offset, made.log_offset, made.store_ms) == (-1, -1, -1)


def test_its_text_tells_the_place_and_never_the_body():
    result = repr(StoredMessage(3, 1, 9, 4_096, 0, 0, 0, b"secret", b"sys"))
    assert result == "StoredMessage(3/1@9, log 4096, 6+3 bytes)"
    assert "secret" not in repr(Append(3, 1, 0, 0, b"secret", b""))
