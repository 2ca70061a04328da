"""How a transaction ends."""

from enum import StrEnum

__all__ = ["TransactionResolution"]


class TransactionResolution(StrEnum):
    """What becomes of a half message."""

    COMMIT = "COMMIT"
    """Deliver it."""
    ROLLBACK = "ROLLBACK"
    """Forget it."""
    UNKNOWN = "UNKNOWN"
    """Not decided yet: ask again later."""
