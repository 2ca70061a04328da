"""Options of the sink."""

from __future__ import annotations

import pickle

import pytest
from pyspark_evenq.options.sink import DeliveryGuarantee, WriteOptions
from pyspark_evenq.options.source import SchemaStyle

from evenq.errors import SettingsError


def parsed(**more: str) -> WriteOptions:
    return WriteOptions.parse({"endpoints": "a:1,b:2"} | more)


def test_what_is_not_given_is_transactional_and_of_our_own_style() -> None:
    options = parsed()
    assert (options.delivery, options.style, options.topic) == (DeliveryGuarantee.TRANSACTIONAL, SchemaStyle.EVENQ, "")
    assert options.endpoints == ("a:1", "b:2")


def test_names_and_words_are_taken_in_any_case_and_what_spark_adds_is_left() -> None:
    options = parsed(TOPIC="t", Delivery="ATLEASTONCE", schemastyle="Kafka", checkpointLocation="c", inflight="2")
    assert (options.topic, options.delivery, options.style) == ("t", DeliveryGuarantee.AT_LEAST_ONCE, SchemaStyle.KAFKA)
    assert options.in_flight == 2


def test_an_address_under_kafkas_name_brings_kafkas_columns_unless_told_otherwise() -> None:
    moved = {"kafka.bootstrap.servers": "a:1,b:2", "topic": "t", "includeHeaders": "true"}
    options = WriteOptions.parse(moved)
    assert (options.endpoints, options.style) == (("a:1", "b:2"), SchemaStyle.KAFKA)
    assert WriteOptions.parse(moved | {"schemaStyle": "evenq"}).style is SchemaStyle.EVENQ


def test_options_pickle_and_show_no_secret() -> None:
    options = parsed(accessKey="me", secretKey="canary-1")
    assert pickle.loads(pickle.dumps(options)) == options  # our own bytes
    assert "canary-1" not in repr(options)


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"topik": "t"}, "did you mean topic"),
        ({"topic": "a b"}, "option topic: "),
        ({"delivery": "twice"}, "give one of: transactional, idempotent, atLeastOnce"),
        ({"schemaStyle": "x"}, "give one of: evenq, kafka"),
        ({"writeTimeoutMs": "5"}, "give a whole number in 100"),
        ({"blockRows": "many"}, "give a whole number"),
        ({"nameServer": "c:3"}, "given twice"),
        ({"gcFreeze": "no"}, "give true or false"),
        ({"subscribe": "t"}, "unknown option 'subscribe' of the evenq sink; docs/guides/spark.md lists all"),
        ({"kafka.acks": "all"}, "Spark's Kafka sink has no meaning for the evenq sink; give delivery"),
        ({"kafka.sasl.jaas.config": "x"}, "give accessKey and secretKey, or credentialsFile"),
        ({"kafka.some.thing": "x"}, "leave it out: it is for Kafka's own client"),
    ],
)
def test_a_wrong_option_says_what_would_be_right(more: dict[str, str], says: str) -> None:
    with pytest.raises(SettingsError, match=says):
        parsed(**more)
