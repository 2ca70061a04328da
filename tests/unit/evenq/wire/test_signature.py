"""Signatures against vectors that `openssl dgst -sha1 -hmac` made."""

import hashlib
import hmac
import pickle

import pytest

from evenq.wire.signature import Secret, authorization, date_time, fits, moment_ms, read_claim, sign

SECRET = Secret("a very secret key")
DATE = "20260102T030405Z"
VECTOR = "f3de732f922d5e9c70909f0318acd94a7ac5d8fb"


@pytest.mark.parametrize(
    ("secret", "date", "expected"),
    [
        ("a very secret key", DATE, VECTOR),
        ("a very secret key", "2026-01-02T03:04:05.123456789Z", "acaf7fbe0bfdc4c5433d41f0d9b3823c0dbf12f6"),
        ("Schlüssel", DATE, "ac67fe62a387e5cb34a7d087cbeaebf6fb662d17"),
    ],
)
def test_a_signature_is_that_of_openssl_in_upper_case(secret: str, date: str, expected: str) -> None:
    assert sign(Secret(secret), date) == expected.upper()
    assert hmac.new(secret.encode(), date.encode(), hashlib.sha1).hexdigest() == expected


@pytest.mark.parametrize("credential", ["orders", "orders//Rocketmq", "orders/cn-hangzhou/RocketMQ"])
@pytest.mark.parametrize("signature", [VECTOR, VECTOR.upper()])
@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0)])
def test_a_header_is_read_with_or_without_region_in_either_case_and_any_order(
    credential: str, signature: str, order: tuple[int, ...]
) -> None:
    parts = [f"Credential={credential}", "SignedHeaders=x-mq-date-time", f"Signature={signature}"]
    claim = read_claim("MQv2-HMAC-SHA1 " + ", ".join(parts[at] for at in order))
    assert claim is not None
    assert claim.user == "orders"
    assert fits(claim, SECRET, DATE)
    assert not fits(claim, Secret("another secret key"), DATE)
    assert not fits(claim, SECRET, DATE.replace("05Z", "06Z"))


def test_what_is_written_is_read() -> None:
    claim = read_claim(authorization("orders", SECRET, DATE))
    assert claim is not None
    assert (claim.user, claim.signature.lower()) == ("orders", VECTOR)


@pytest.mark.parametrize(
    "header",
    [
        "",
        "Basic b3JkZXJz",
        "MQv2-HMAC-SHA1",
        f"MQv2-HMAC-SHA1 Credential=, SignedHeaders=x-mq-date-time, Signature={VECTOR}",
        f"MQv2-HMAC-SHA1 Credential=/region, SignedHeaders=x-mq-date-time, Signature={VECTOR}",
        "MQv2-HMAC-SHA1 Credential=orders, SignedHeaders=x-mq-date-time, Signature=",
        f"MQv2-HMAC-SHA1 Credential=orders, SignedHeaders=x-mq-date-time, Signature={VECTOR}0",
        f"MQv2-HMAC-SHA1 Credential=orders, Credential=root, Signature={VECTOR}",
        f"MQv2-HMAC-SHA1 Credential=orders, SignedHeaders=host, Signature={VECTOR}",
        f"MQv2-HMAC-SHA256 Credential=orders, SignedHeaders=x-mq-date-time, Signature={VECTOR}",
        f"MQv2-HMAC-SHA1 Credential={'a' * 2_000}, Signature={VECTOR}",
    ],
)
def test_other_headers_are_no_claim(header: str) -> None:
    assert read_claim(header) is None


def test_strange_hex_is_wrong_and_not_an_exception() -> None:
    claim = read_claim(f"MQv2-HMAC-SHA1 Credential=orders, Signature={'ß' * 40}")
    assert claim is not None
    assert not fits(claim, SECRET, DATE)


def test_dates_are_written_in_utc_and_read_in_both_forms() -> None:
    assert date_time(1_767_323_045_999) == DATE
    assert moment_ms(DATE) == 1_767_323_045_000
    assert moment_ms("2026-01-02T03:04:05Z") == 1_767_323_045_000
    assert moment_ms("2026-01-02T04:04:05+01:00") == 1_767_323_045_000
    assert moment_ms("2026-01-02T03:04:05.123456789Z") == 1_767_323_045_123
    for text in ("", "yesterday", "20261302T030405Z", "9" * 64):
        assert moment_ms(text) is None


def test_a_secret_is_in_no_text() -> None:
    result = f"{SECRET} {SECRET!r} {[SECRET]} {SECRET:>40}"
    assert "very" not in result
    assert Secret("a very secret key") == SECRET
    assert Secret("another secret key") != SECRET
    with pytest.raises(TypeError, match="pickle"):
        pickle.dumps(SECRET)
