"""The namespace is part of a name (wire contract 2.4)."""

import pytest
from evenq_broker.core.resources import qualified

from evenq.wire.stubs.apache.rocketmq.v2 import definition_pb2


@pytest.mark.parametrize(
    ("own", "header", "name"),
    [("", "", "t"), ("mine", "", "mine%t"), ("", "theirs", "theirs%t"), ("mine", "theirs", "mine%t")],
)
def test_the_resources_namespace_wins_over_the_headers(own: str, header: str, name: str) -> None:
    assert qualified(definition_pb2.Resource(resource_namespace=own, name="t"), header) == name
