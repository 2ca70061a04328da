"""The compiled accelerator for tests: they are skipped where it is not installed.

With `EVENQ_TEST_ALL` they fail if cargo is there, because `make dev` should have built it; not with `EVENQ_NATIVE=off`.
"""

from __future__ import annotations

import os
import shutil
from types import ModuleType

import pytest

from evenq.runtime.accelerator import INSTALL, MODULE, VARIABLE, accelerator


def native_module() -> ModuleType:
    """Returns the module; otherwise skips the test, or fails it."""
    choice = accelerator()
    if choice.module is None:
        reason = f"{MODULE} is {choice.state}; {INSTALL}"
        if os.environ.get("EVENQ_TEST_ALL") and shutil.which("cargo") and os.environ.get(VARIABLE) != "off":
            pytest.fail(reason)
        pytest.skip(reason)
    return choice.module
