"""Tags as hashes, expressions as sets of them (wire contract 5.4)."""

import pytest
from evenq_broker.core.delivery.tags import EXPRESSION_LENGTH_MAX, TAGS_MAX, tag_hash, tag_prefixes, wanted_tags

from evenq.errors import IllegalFilterExpression
from evenq.wire.stubs.apache.rocketmq.v2 import definition_pb2


def test_a_hash_is_signed_64_bit_and_only_no_tag_is_zero() -> None:
    hashes = {tag_hash(str(number)) for number in range(1_000)}
    assert len(hashes) == 1_000
    assert 0 not in hashes
    assert all(-(1 << 63) <= one < 1 << 63 for one in hashes)
    assert tag_hash("") == 0


@pytest.mark.parametrize("expression", ["", "*", " * ", "a || *", "||"])
def test_what_asks_for_everything_filters_nothing(expression: str) -> None:
    assert wanted_tags(expression) is None


def test_an_expression_is_the_set_of_its_tags() -> None:
    assert wanted_tags("a||b || a") == {"a", "b"}
    assert wanted_tags(" || ".join(f"t{number}" for number in range(TAGS_MAX))) is not None


@pytest.mark.parametrize(
    ("expression", "given"),
    [
        ("a|b", "'a\\|b' holds"),
        ("a || b\x01", "control character"),
        ("x" * (EXPRESSION_LENGTH_MAX + 1), f"the limit is {EXPRESSION_LENGTH_MAX}"),
        (" || ".join(f"t{number}" for number in range(TAGS_MAX + 1)), f"the limit is {TAGS_MAX}"),
    ],
)
def test_a_bad_expression_is_told_with_its_limit(expression: str, given: str) -> None:
    with pytest.raises(IllegalFilterExpression, match=given):
        wanted_tags(expression)


def test_the_stored_bytes_tell_tags_apart_that_would_share_a_hash() -> None:
    def stored(**fields: object) -> bytes:
        return definition_pb2.SystemProperties(message_id="m", keys=["k"], **fields).SerializeToString()  # type: ignore[arg-type] # fields of the test

    long = "x" * 300
    prefixes = tag_prefixes({"red", "blue", long, "größe"})
    assert all(stored(tag=tag).startswith(prefixes) for tag in ("red", "blue", long, "größe"))
    assert not any(stored(tag=tag).startswith(prefixes) for tag in ("re", "redd", "x" * 299, "x" * 301, "größ"))
    assert not stored().startswith(prefixes)
