"""Which extra of the package brings what is not installed: a sentence instead of a traceback.

`pip install evenq` is the SDK, with gRPC and protobuf alone. Programs say with this what they need beyond; a test holds
the table against pyproject.toml.
"""

from __future__ import annotations

from importlib.util import find_spec

__all__ = ["EXTRA_OF", "is_installed", "missing", "sentence"]

EXTRA_OF = {
    "crc32c": "server",
    "cryptography": "tls",
    "fsspec": "backup",
    "kubernetes": "kubernetes",
    "lark": "server",
    "lz4": "compression",
    "numpy": "spark",
    "prometheus_client": "server",
    "pyarrow": "spark",
    "pydantic": "server",
    "pyspark": "spark",
    "rich": "cli",
    "uvloop": "server",
    "zstandard": "compression",
}
"""Package, as it is imported, to the smallest extra that installs it."""


def sentence(program: str, error: ModuleNotFoundError) -> str:
    """What to install, for people. Raises `error` itself if no extra of ours brings the module: a mistake of ours."""
    package = (error.name or "").partition(".")[0]
    if package not in EXTRA_OF:
        raise error
    return missing(program, package)


def missing(program: str, package: str) -> str:
    """The same, for a package that is known to be missing."""
    extra = EXTRA_OF[package]
    return (
        f'{program} needs the package {package}, which is not installed: pip install "evenq[{extra}]" '
        f'(in a clone: pip install ".[{extra}]")'
    )


def is_installed(package: str) -> bool:
    """True if it can be imported; it is not."""
    return find_spec(package) is not None
