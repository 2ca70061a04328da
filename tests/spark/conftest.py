"""One local Spark for the run, and a broker per test."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def spark() -> Iterator[Any]:
    if not os.environ.get("JAVA_HOME"):
        found = subprocess.run(
            [sys.executable, ROOT / "tools" / "java_home.py"], capture_output=True, text=True, check=True
        )
        os.environ["JAVA_HOME"] = found.stdout.strip()
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    from pyspark.sql import SparkSession

    session = (
        SparkSession.builder.master("local[2]")
        .appName("evenq-tests")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.driver.memory", "1g")
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()


def _fake_broker() -> Any:
    path = ROOT / "tests" / "unit" / "pyspark_evenq" / "conftest.py"
    spec = importlib.util.spec_from_file_location("fake_broker", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.FakeBroker


@pytest.fixture
def broker() -> Iterator[Any]:
    made = _fake_broker()(queues=4)
    yield made
    made.stop()
