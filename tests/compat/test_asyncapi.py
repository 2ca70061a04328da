"""AsyncAPI documents of a cluster and of a FastStream application, against the JSON schema that AsyncAPI publishes.

npm puts the schemas into a cache folder at the first run (`EVENQ_ASYNCAPI_CACHE`, otherwise below the user's cache).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from faststream.security import SASLPlaintext
from faststream.specification import AsyncAPI

from evenq.cli.__main__ import main
from evenq.faststream import EvenqBroker
from evenq.testing import LocalCluster

import evenq  # isort: skip

pytestmark = pytest.mark.timeout(600)  # npm may install the schemas first


def problems(document: dict[str, Any], schemas: Path) -> list[str]:
    schema = json.loads((schemas / "3.0.0.json").read_text(encoding="utf-8"))
    validator = jsonschema.validators.validator_for(schema)(schema)
    return [f"{list(error.absolute_path)}: {error.message:.200}" for error in validator.iter_errors(document)]


def test_the_document_of_a_cluster_is_valid(
    asyncapi_schemas: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("EVENQ_ACCESS_KEY", "alice")
    monkeypatch.setenv("EVENQ_SECRET_KEY", "secret")
    with LocalCluster(folder=tmp_path / "cluster") as cluster:
        with evenq.Admin(endpoint=cluster.endpoint) as admin:
            admin.create_topic("orders%eu", message_type="FIFO")
            admin.create_topic("refunds", message_type="LITE")
            admin.create_group("billing")
        consumer = evenq.SimpleConsumer(group="billing", subscriptions={"orders%eu": "paid"}, endpoint=cluster.endpoint)
        with consumer:
            consumer.receive(wait_ms=0)
            assert main(["asyncapi", "--endpoint", cluster.endpoint]) == 0
    document = json.loads(capsys.readouterr().out)
    assert set(document["channels"]) == {"orders_eu", "refunds"}
    assert "accessKey" in document["components"]["securitySchemes"]
    assert problems(document, asyncapi_schemas) == []
    document["operations"]["wrong"] = {"action": "read"}
    assert problems(document, asyncapi_schemas)


def test_the_document_of_an_application_is_valid(asyncapi_schemas: Path) -> None:
    broker = EvenqBroker("10.0.0.1:8081;10.0.0.2:8081", security=SASLPlaintext("alice", "secret"))

    @broker.subscriber("orders", "refunds", group="billing", tag="paid")
    @broker.publisher("bills")
    async def bill(order: dict[str, int]) -> int:
        """Bills an order."""
        return order["id"]

    document = json.loads(AsyncAPI(broker).to_specification().to_json())
    assert len(document["channels"]) == 3
    assert problems(document, asyncapi_schemas) == []
