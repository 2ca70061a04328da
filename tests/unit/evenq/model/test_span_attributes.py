"""The names are those of the published conventions, except for our own two."""

from opentelemetry.semconv._incubating.attributes import messaging_attributes
from opentelemetry.semconv.attributes import error_attributes, server_attributes

from evenq.model import span_attributes


def test_every_name_is_in_the_conventions_or_begins_with_our_prefix() -> None:
    published = {
        value
        for module in (messaging_attributes, error_attributes, server_attributes)
        for value in vars(module).values()
        if isinstance(value, str)
    }
    names = {getattr(span_attributes, name) for name in span_attributes.__all__} - {span_attributes.SCHEMA_URL}
    assert {name for name in names if name not in published} == {
        "evenq.message.delivery_attempt",
        "evenq.message.outcome",
    }
