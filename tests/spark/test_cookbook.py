"""The Spark job of the cookbook sums the orders of a topic."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import pytest

COOKBOOK = Path(__file__).parents[2] / "examples" / "cookbook"
ORDERS = [("ann", 30), ("ben", 12), ("ann", 5)]


def test_the_job_sums_the_orders_of_each_customer(spark: Any, topic: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for number, (customer, amount) in enumerate(ORDERS):
        topic.send({number % 4: [json.dumps({"customer": customer, "amount": amount})]})
    monkeypatch.syspath_prepend(COOKBOOK)
    job = importlib.import_module("spark_totals")
    rows = job.totals(spark, endpoint=topic.broker.address, topic=topic.name).collect()
    assert [tuple(row) for row in rows] == [("ann", 2, 35), ("ben", 1, 12)]
