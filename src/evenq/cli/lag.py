"""Display of a group's lag. While brokers do not answer, only a lower bound is known."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence

from evenq.cli.admin import warn_silent
from evenq.cli.output import Column, Scalar

AT_LEAST = "lag_at_least"


def lag_facts(lag: int, silent: Sequence[str]) -> dict[str, Scalar | list[str]]:
    """Returns `lag`; with silent brokers it is None, beside `lag_at_least` and their names."""
    return {"lag": None, AT_LEAST: lag, "silent": list(silent)} if silent else {"lag": lag}


def lag_columns(silent: Iterable[str]) -> list[Column]:
    """Returns the columns of a table whose cells come from `lag_cells`."""
    more = [Column(AT_LEAST, "at least", "number")] if any(silent) else []
    return [Column("lag", "lag", "number"), *more]


def lag_cells(lag: int, silent: Iterable[str]) -> tuple[Scalar, ...]:
    """Returns the cells for `lag_columns` of the same brokers."""
    return (None, lag) if any(silent) else (lag,)


def warn_lag(options: argparse.Namespace, silent: Iterable[str]) -> None:
    warn_silent(options, sorted(set(silent)), "the lag of groups there")
