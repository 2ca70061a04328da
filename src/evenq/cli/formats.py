"""The forms in which a command prints its result, `-o FORM`. No heavy module is imported: the grammar needs them.

`--json` and `--wide` are the older names of `-o json` and `-o wide`.
"""

from __future__ import annotations

import argparse
from enum import StrEnum


class Output(StrEnum):
    """A form of the result."""

    TABLE = "table"
    """Tables for people that fit 80 characters."""
    WIDE = "wide"
    """Tables with all columns."""
    JSON = "json"
    """One line of JSON with exact values; `docs/reference/cli.md` lists the keys."""
    YAML = "yaml"
    """The same values as YAML."""
    NAME = "name"
    """Only names or ids, one a line, for loops of a shell."""

    @property
    def for_programs(self) -> bool:
        """True: no table, so hints and progress bars are left out too."""
        return self in {Output.JSON, Output.YAML, Output.NAME}

    @property
    def structured(self) -> bool:
        """True: all values with their keys."""
        return self in {Output.JSON, Output.YAML}


def add_output(parser: argparse.ArgumentParser, *, wide: bool = False) -> None:
    """Adds `-o` and its older names. `wide`: the command has columns that only `-o wide` shows."""
    parser.add_argument(
        "-o",
        "--output",
        type=_output,
        choices=tuple(Output),
        default=Output.TABLE,
        help="form of the result: tables for people (table; wide has all columns), exact values for programs (json, "
        "yaml), or only names, one a line (name) (default table)",
    )
    parser.add_argument(
        "--json", dest="output", action="store_const", const=Output.JSON, default=Output.TABLE, help="same as -o json"
    )
    if wide:
        parser.add_argument(
            "--wide",
            dest="output",
            action="store_const",
            const=Output.WIDE,
            default=Output.TABLE,
            help="same as -o wide: all columns (default: those that fit 80 characters)",
        )


def _output(text: str) -> Output:
    try:
        return Output(text.lower())
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a form; choose from {', '.join(Output)}") from None
