"""What a history's judge tolerates on the machine that it was played on."""

from __future__ import annotations

import os

from evenq.testing.checker import Tolerances


def tolerances() -> Tolerances:
    """The checker's own, with EVENQ_TEST_RECOVERY_MS for the time from a fault to the next success: pytest gives a busy machine
    more of it than the long runs have.
    """
    recovery_ms = os.environ.get("EVENQ_TEST_RECOVERY_MS")
    return Tolerances() if recovery_ms is None else Tolerances(recovery_ms_max=int(recovery_ms))
