"""The version of evenq, sent to nameservers and shown in `evenq_build_info`."""

from __future__ import annotations

from functools import cache

__version__ = "0.2.0"
"""Version of this code; a package built from a git tag must have the same one (`tools/version.py`)."""


@cache
def software_version() -> str:
    """Returns the version of the installed package; empty if none is installed."""
    from importlib.metadata import PackageNotFoundError, version  # not at each import of evenq: it takes 20 ms

    try:
        return version("evenq")
    except PackageNotFoundError:
        return ""
