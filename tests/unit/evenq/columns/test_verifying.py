"""Who compares checksums."""

import sys
from typing import Any

from evenq.columns.verifying import can_verify


def test_a_worker_without_the_package_leaves_checksums_to_the_broker(monkeypatch: Any) -> None:
    assert can_verify()
    monkeypatch.setitem(sys.modules, "crc32c", None)
    assert not can_verify()
