"""What the source costs beside its ceiling, in one process: no absolute speed, so that a busy machine does not matter much.

`make bench-spark` is the long form and judges the goals; this holds a line far enough below them to fail only for a path
that was broken, e.g. a read that fell back to message after message.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

from tests.spark.conftest import ROOT

pytestmark = pytest.mark.timeout(500)
CEILING_SHARE_MIN = {"evenq": 0.5, "evenq message": 0.2}
FIGURE = re.compile(r"^\W*(batch, all columns)\s+\W\s+(.+?)\s+\W\s+([\d,.]+) \(")


def test_a_batch_reads_at_half_the_ceiling_and_messages_at_a_fifth(spark_environment: None) -> None:
    command = [sys.executable, str(ROOT / "benchmarks" / "spark.py"), "--no-kafka", "--no-save", "--only", "batch"]
    done = subprocess.run(
        [*command, "--rows", "120000", "--rounds", "5", "--formats", "auto", "message"],
        env=os.environ | {"COLUMNS": "200"}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    found = {
        match[2]: float(match[3].replace(",", "")) for match in map(FIGURE.match, done.stdout.splitlines()) if match
    }
    assert found.keys() == {"evenq", "evenq message", "ceiling"}, done.stdout + done.stderr[-3_000:]
    shares = {name: rate / found["ceiling"] for name, rate in found.items()}
    assert all(shares[name] >= share for name, share in CEILING_SHARE_MIN.items()), f"{shares}\n{done.stdout}"
