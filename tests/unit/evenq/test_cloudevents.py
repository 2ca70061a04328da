"""CloudEvents in messages: both modes, what is refused, and the names that the Java module uses."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

import pytest
from cloudevents import pydantic
from cloudevents.http import CloudEvent
from hypothesis import given
from hypothesis import strategies as st

import evenq
from evenq.cloudevents import IllegalCloudEvent, from_message, is_event, to_message
from evenq.errors import BadRequest

MODES = ["binary", "structured"]
REQUIRED = {"id": "1", "source": "/shop", "type": "com.example.paid"}
TIMED = {**REQUIRED, "time": "2026-11-30T10:00:00+00:00"}
JSON = "application/json"


def event(data: Any = None, **attributes: Any) -> CloudEvent:
    return CloudEvent({**TIMED, **attributes}, data)


def message(body: bytes, **properties: str) -> evenq.Message:
    return evenq.Message(topic="t", body=body, properties=properties)


def binary(body: bytes = b"x", **properties: str) -> evenq.Message:
    """A message as the Java module writes it."""
    required = {f"CE_{name}": value for name, value in REQUIRED.items()}
    return message(body, **{"CE_specversion": "1.0", **required, **properties})


def structured(**members: Any) -> evenq.Message:
    envelope = {"specversion": "1.0", **REQUIRED, **members}
    return message(json.dumps(envelope).encode(), CE_contenttype="application/cloudevents+json")


def test_the_names_of_binary_mode_are_those_of_the_java_module() -> None:
    sent = to_message(
        event({"order": 17}, datacontenttype=JSON, subject="17", dataschema="/s", traceparent="00-1"), topic="orders"
    )
    assert sent.properties == {
        "CE_specversion": "1.0",
        "CE_id": "1",
        "CE_source": "/shop",
        "CE_type": "com.example.paid",
        "CE_time": "2026-11-30T10:00:00+00:00",
        "CE_subject": "17",
        "CE_dataschema": "/s",
        "CE_traceparent": "00-1",
        "CE_contenttype": "application/json",
    }
    assert (sent.topic, sent.body, sent.tag, sent.keys) == ("orders", b'{"order":17}', None, ())


def test_the_envelope_of_structured_mode_is_the_json_format() -> None:
    sent = to_message(
        event({"order": 17}, datacontenttype=JSON, priority=3, urgent=True), topic="orders", mode="structured"
    )
    assert sent.properties == {"CE_contenttype": "application/cloudevents+json"}
    assert json.loads(sent.body) == {
        "specversion": "1.0", **TIMED, "datacontenttype": JSON, "priority": 3, "urgent": True, "data": {"order": 17},
    }  # fmt: skip


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("data", "content_type"),
    [
        ({"a": [1, None, "ü"]}, JSON),
        ("a text", JSON),
        (17, JSON),
        (False, "application/problem+json; charset=utf-8"),
        ("plain ü", "text/plain"),
        ("<a/>", "application/xml"),
        ("<a/>", "image/svg+xml"),
        (b"\x01\x02", "application/octet-stream"),
        (b"123", None),
        (b"\xff\xfe", "image/png"),
        (None, None),
        (None, JSON),
    ],
)
@pytest.mark.parametrize("kind", [CloudEvent, pydantic.CloudEvent])
def test_an_event_comes_back_as_it_was_sent(mode: Any, data: Any, content_type: str | None, kind: Any) -> None:
    given_attributes = {**TIMED, **({"datacontenttype": content_type} if content_type else {}), "colour": "red"}
    sent = kind(given_attributes, data)
    got = from_message(to_message(sent, topic="t", mode=mode), kind)
    assert isinstance(got, kind)
    assert got == sent


def test_json_data_without_a_content_type_gets_one_in_binary_mode() -> None:
    got = from_message(to_message(event({"a": 1}), topic="t"))
    assert (got.data, got["datacontenttype"]) == ({"a": 1}, JSON)
    assert from_message(to_message(event("text"), topic="t")).data == "text"
    assert from_message(to_message(event({"a": 1}), topic="t", mode="structured")) == event({"a": 1})


def test_tag_keys_group_and_properties_of_the_message_are_given_apart() -> None:
    sent = to_message(
        event(), topic="t", tag="paid", keys=["17"], message_group="order-17", properties={"region": "eu"}
    )
    assert (sent.tag, sent.keys, sent.message_group, sent.properties["region"]) == ("paid", ("17",), "order-17", "eu")
    assert "region" not in from_message(sent)
    with pytest.raises(IllegalCloudEvent, match="'CE_x' starts with CE_"):
        to_message(event(), topic="t", properties={"CE_x": "1"})


def test_values_of_attributes_are_written_as_the_type_system_says() -> None:
    class Colour(StrEnum):
        RED = "red"

    attributes = {
        "flag": True,
        "count": -7,
        "raw": b"\x01",
        "colour": Colour.RED,
        "time": datetime(2026, 1, 2, tzinfo=UTC),
    }
    properties = to_message(event(**attributes), topic="t").properties
    assert {name: properties[f"CE_{name}"] for name in attributes} == {
        "flag": "true", "count": "-7", "raw": "AQ==", "colour": "red", "time": "2026-01-02T00:00:00+00:00",
    }  # fmt: skip


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("attributes", "text"),
    [
        ({"id": ""}, "the event has the id ''"),
        ({"source": None}, "the event has the source None"),
        ({"type": 7}, "the event has the type 7"),
        ({"my_name": "x"}, "the attribute 'my_name'; a name is of lower-case letters and digits"),
        ({"data": "x"}, "the attribute 'data'"),
        ({"contenttype": "x"}, "the attribute 'contenttype'"),
        ({"count": 1 << 31}, "the attribute count of the event is 2147483648"),
        ({"ratio": 0.5}, "the attribute ratio of the event is 0.5 .float.; give a text"),
        ({"note": "a\nb"}, "the attribute note of the event is 'a\\\\nb'"),
        (
            {"time": datetime(2026, 1, 2, tzinfo=UTC).replace(tzinfo=None)},
            "the attribute time of the event is datetime",
        ),
    ],
)
def test_an_event_that_no_message_can_hold_is_refused(mode: Any, attributes: dict[str, Any], text: str) -> None:
    wrong = event()
    for name, value in attributes.items():
        wrong[name] = value
    with pytest.raises(IllegalCloudEvent, match=text):
        to_message(wrong, topic="t", mode=mode)


@pytest.mark.parametrize(
    ("data", "content_type", "mode", "text"),
    [
        (b"", None, "binary", "the data of the event is b''"),
        (b"\0", "image/png", "binary", "one zero byte means no data"),
        ("", "text/plain", "binary", "an empty text"),
        ({"a": 1}, "text/plain", "binary", "is a dict and its datacontenttype is 'text/plain'"),
        ({"a": 1}, "text/plain", "structured", "is a dict and its datacontenttype is 'text/plain'"),
        ({"a": object()}, None, "binary", "the data of the event cannot be written as JSON"),
        ({"a": object()}, None, "structured", "the event cannot be written as JSON"),
        (float("nan"), None, "binary", "cannot be written as JSON"),
    ],
)
def test_data_that_no_message_can_hold_is_refused(data: Any, content_type: str | None, mode: Any, text: str) -> None:
    attributes = {"datacontenttype": content_type} if content_type else {}
    with pytest.raises(IllegalCloudEvent, match=text):
        to_message(event(data, **attributes), topic="t", mode=mode)


def test_data_too_short_for_binary_mode_is_sent_in_structured_mode() -> None:
    for data in (b"", b"\0"):
        assert from_message(to_message(event(data), topic="t", mode="structured")).data == data


def test_other_arguments_are_refused_with_what_to_give() -> None:
    with pytest.raises(IllegalCloudEvent, match="the event is a dict; give a CloudEvent"):
        to_message({"id": "1"}, topic="t")  # type: ignore[arg-type]
    with pytest.raises(BadRequest, match="mode is 'batch'; give 'binary' or 'structured'"):
        to_message(event(), topic="t", mode="batch")  # type: ignore[arg-type]


RECORDED = {
    "CE_source": "/java", "CE_type": "t", "CE_id": "1", "CE_subject": "sub", "CE_specversion": "1.0",
    "CE_time": "2018-04-26T14:48:09+02:00", "astring": "aaa", "abool": "true", "anumber": "10",
}  # fmt: skip
"""Properties as the Java module wrote them (main of 2026-05-27, with cloudevents-core 4.0.1). Its extensions have no
prefix, and it does not read them back."""
OF_JAVA = {
    "specversion": "1.0", "id": "1", "source": "/java", "type": "t", "subject": "sub",
    "time": "2018-04-26T14:48:09+02:00",
}  # fmt: skip


def test_binary_events_that_the_java_module_wrote_are_read() -> None:
    got = from_message(message(b'{"a":1}', **RECORDED, CE_contenttype=JSON))
    assert dict(got.get_attributes()) == {**OF_JAVA, "datacontenttype": JSON}
    assert got.data == {"a": 1}
    empty = from_message(message(b"\0", **RECORDED), extensions=["astring", "abool", "anumber", "other"])
    assert dict(empty.get_attributes()) == {**OF_JAVA, "astring": "aaa", "abool": "true", "anumber": "10"}
    assert empty.data is None
    both = from_message(binary(astring="aaa", CE_astring="prefixed"), extensions=["astring"])
    assert both["astring"] == "prefixed"


def test_structured_events_that_the_java_module_wrote_are_read() -> None:
    body = (
        b'{"specversion":"1.0","id":"1","source":"/java","type":"t","datacontenttype":"application/json","subject":"sub",'
        b'"time":"2018-04-26T14:48:09+02:00","astring":"aaa","abool":true,"anumber":10,"data":{"a":1}}'
    )
    got = from_message(message(body, CE_contenttype="application/cloudevents+json"))
    wanted = {**OF_JAVA, "datacontenttype": JSON, "astring": "aaa", "abool": True, "anumber": 10}
    assert (dict(got.get_attributes()), got.data) == (wanted, {"a": 1})


def test_version_0_3_is_read_and_written() -> None:
    old = CloudEvent({**TIMED, "specversion": "0.3", "datacontenttype": "image/png"}, b"\x01")
    for mode in ("binary", "structured"):
        assert from_message(to_message(old, topic="t", mode=mode)) == old
    assert json.loads(to_message(old, topic="t", mode="structured").body)["datacontentencoding"] == "base64"


def test_a_missing_time_stays_missing() -> None:
    for sent in (binary(), structured()):
        got = from_message(sent)
        assert got["time"] is None
        assert "CE_time" not in to_message(got, topic="t").properties


def test_text_is_decoded_as_its_content_type_says() -> None:
    assert from_message(binary("ü".encode("latin-1"), CE_contenttype='text/plain; charset="ISO-8859-1"')).data == "ü"
    assert from_message(binary(b"x", CE_contenttype="TEXT/Plain")).data == "x"


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        (message(b"x"), "a message of topic t is not a CloudEvent: it has neither the property CE_specversion"),
        (message(b"x", CE_contenttype=JSON), "neither the property CE_specversion"),
        (binary(CE_specversion="2.0"), "the specversion '2.0'; supported are 1.0 and 0.3"),
        (binary(CE_id=""), "the id ''; a CloudEvent needs id, source, type"),
        (binary(CE_Name="x"), "the attribute name 'Name'"),
        (binary(CE_data="x"), "the attribute name 'data'"),
        (binary(b"{", CE_contenttype=JSON), "the data is not valid JSON"),
        (binary(b"[" * 100_000, CE_contenttype=JSON), "the data is not valid JSON"),
        (binary(b"1" * 10_000, CE_contenttype=JSON), "the data is not valid JSON"),
        (binary(b"\xff", CE_contenttype="text/plain"), "cannot be decoded as 'text/plain'"),
        (binary(CE_contenttype="text/plain; charset=no-such"), "cannot be decoded"),
        (message(b"{", CE_contenttype="application/cloudevents+json"), "the body is not valid JSON"),
        (message(b"[]", CE_contenttype="application/cloudevents+json"), "its body is .., not a JSON object"),
        (message(b"[]", CE_contenttype="application/cloudevents-batch+json"), "one per message"),
        (message(b"x", CE_contenttype="application/cloudevents+avro"), "supported is application/cloudevents.json"),
        (structured(id=7), "the id 7"),
        (structured(specversion=1.0), "its attribute specversion is 1.0"),
        (structured(extra={"a": 1}), "its attribute extra is"),
        (structured(Extra="x"), "the attribute name 'Extra'"),
        (structured(data=1, data_base64="AQ=="), "both data and data_base64"),
        (structured(data_base64="no base64!"), "not valid base64"),
        (structured(data_base64=7), "not valid base64"),
        (replace(message(b"x"), message_id="M1"), "message M1 of topic t is not a CloudEvent"),
    ],
)
def test_a_message_that_is_no_event_is_refused(wrong: evenq.Message, text: str) -> None:
    with pytest.raises(IllegalCloudEvent, match=text):
        from_message(wrong)


def test_an_event_that_the_class_refuses_names_its_message() -> None:
    with pytest.raises(IllegalCloudEvent, match=r"a message of topic t is not a valid CloudEvent: .*time"):
        from_message(binary(CE_time="yesterday"), pydantic.CloudEvent)


def test_a_message_says_whether_it_is_an_event() -> None:
    assert is_event(binary())
    assert is_event(structured())
    assert is_event(message(b"x", CE_contenttype="Application/CloudEvents+JSON; charset=utf-8"))
    assert not is_event(message(b"x", CE_contenttype=JSON))


def test_content_types_are_compared_without_case_and_parameters() -> None:
    sent = to_message(event({"a": 1}), topic="t", mode="structured")
    other = replace(sent, properties={"CE_contenttype": "Application/CloudEvents+JSON; charset=UTF-8"})
    assert from_message(other) == event({"a": 1})


names = st.text(st.sampled_from("abcxyz019"), min_size=1, max_size=20).filter(
    lambda name: name not in {*TIMED, "data", "contenttype", "datacontenttype", "specversion", "datacontentencoding"}
)
values = st.text(st.characters(min_codepoint=32, exclude_categories=["Cs", "Cc"]), max_size=30)
datas = st.recursive(
    st.none() | st.booleans() | st.integers(-(1 << 60), 1 << 60) | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
)


@given(st.dictionaries(names, values, max_size=5), datas | st.binary(min_size=2), st.sampled_from(MODES))
def test_any_event_survives_both_modes(extensions: dict[str, str], data: Any, mode: Any) -> None:
    attributes = {} if isinstance(data, bytes) else {"datacontenttype": JSON}
    sent = event(data, **attributes, **extensions)
    assert from_message(to_message(sent, topic="t", mode=mode)) == sent


@given(
    st.binary(max_size=50),
    st.dictionaries(
        st.sampled_from(["CE_specversion", "CE_id", "CE_source", "CE_type", "CE_contenttype", "x"]),
        st.sampled_from(["1.0", JSON, "application/cloudevents+json", "text/plain", ""]) | values,
    ),
)
def test_whatever_arrives_is_an_event_or_refused(body: bytes, properties: dict[str, str]) -> None:
    try:
        got = from_message(message(body or b"x", **properties))
    except IllegalCloudEvent:
        got = None
    assert got is None or all(got[name] for name in REQUIRED)
