"""Which evenq this is: told to nameservers and shown in `evenq_build_info`. Read once."""

from __future__ import annotations

from functools import cache
from importlib.metadata import PackageNotFoundError, version

__all__ = ["software_version"]


@cache
def software_version() -> str:
    """As the installed package says; empty if none is installed."""
    try:
        return version("evenq")
    except PackageNotFoundError:
        return ""
