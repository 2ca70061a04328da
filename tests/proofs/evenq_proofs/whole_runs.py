"""Tests that need something of the machine: a tool, a cluster, a mount. CI sets `EVENQ_TEST_ALL`, so none is left out there."""

from __future__ import annotations

import os
from typing import NoReturn

import pytest


def skip_or_fail(why: str) -> NoReturn:
    """Skips the test, or fails it where everything must run. `why`: what is missing, and how to get it."""
    if os.environ.get("EVENQ_TEST_ALL"):
        pytest.fail(f"{why}; with EVENQ_TEST_ALL this test may not be left out")
    pytest.skip(why)
