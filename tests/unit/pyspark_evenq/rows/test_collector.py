"""What a worker's full collection after each task looks through."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import gc, json, sys
import pyspark.worker
from pyspark_evenq.rows.collector import freeze_libraries

import numpy, pyarrow, grpc
freeze_libraries()
first = len(gc.get_objects())
import sqlite3, xml.dom.minidom
later = len(gc.get_objects())
freeze_libraries()
print(json.dumps([first, later, len(gc.get_objects()), gc.get_freeze_count()]))
"""


def test_nothing_of_what_is_loaded_is_looked_through_again() -> None:
    output = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True).stdout
    first, later, again, frozen = map(int, output.strip("[]\n").split(","))
    assert first < 100
    assert later > 100, "the modules bring too little for this test to show anything"
    assert again < 100
    assert frozen > 20_000
