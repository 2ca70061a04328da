"""How commands show a group's lag. While brokers are away it is unknown: what they have can only be more."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence

from evenq.cli.admin import warn_silent
from evenq.cli.output import Column, Scalar

__all__ = ["lag_cells", "lag_columns", "lag_facts", "warn_lag"]

AT_LEAST = "lag_at_least"


def lag_facts(lag: int, silent: Sequence[str]) -> dict[str, Scalar | list[str]]:
    """`lag`, null if brokers are silent; then `lag_at_least` and who they are."""
    return {"lag": None, AT_LEAST: lag, "silent": list(silent)} if silent else {"lag": lag}


def lag_columns(silent: Iterable[str]) -> list[Column]:
    """The same, of a table; its cells come from `lag_cells`."""
    more = [Column(AT_LEAST, "at least", "number")] if any(silent) else []
    return [Column("lag", "lag", "number"), *more]


def lag_cells(lag: int, silent: Iterable[str]) -> tuple[Scalar, ...]:
    """For `lag_columns` of the same brokers."""
    return (None, lag) if any(silent) else (lag,)


def warn_lag(options: argparse.Namespace, silent: Iterable[str]) -> None:
    """Name the silent brokers on standard error."""
    warn_silent(options, sorted(set(silent)), "what groups have there")
