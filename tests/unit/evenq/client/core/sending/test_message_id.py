"""Ids have the published form and never repeat."""

from evenq.client.core.sending.message_id import MessageIds


def test_an_id_is_34_upper_hex_digits_of_version_mac_pid_seconds_and_counter() -> None:
    ids = MessageIds(mac=0x0242AC110002, process_id=0x12345)
    assert ids.next(1_609_459_200_000 + 5_999) == "01" + "0242AC110002" + "2345" + "00000005" + "00000000"
    assert ids.next(1_609_459_200_000 + 5_999)[-8:] == "00000001"
