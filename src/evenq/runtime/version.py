"""Which evenq this is: sent to nameservers and shown in `evenq_build_info`. Read once."""

from __future__ import annotations

from functools import cache

__all__ = ["__version__", "software_version"]

__version__ = "0.1.0"
"""Of this code; a package that is built from a git tag has the tag's, which must be the same (`tools/version.py`)."""


@cache
def software_version() -> str:
    """As the installed package says; empty if none is installed."""
    from importlib.metadata import PackageNotFoundError, version  # not at each import of evenq: 20 ms

    try:
        return version("evenq")
    except PackageNotFoundError:
        return ""
