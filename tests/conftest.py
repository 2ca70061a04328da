"""Markers come from the folder: a test under tests/chaos is a chaos test without saying so."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from hypothesis import settings

# How long an example takes depends on what else the machine does: tests judge what is right, benchmarks how fast.
settings.register_profile("evenq", deadline=None)
settings.load_profile("evenq")

# Behind `&` in a shell without job control Ctrl-C is ignored, and by every process that tests start, too.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

ROOT = Path(__file__).resolve().parent
FOLDERS = ("sim", "integration", "compat", "chaos", "live", "helm", "spark", "docs")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        folder = item.path.relative_to(ROOT).parts[0]
        if folder in FOLDERS:
            item.add_marker(folder)
