"""The extra of the package that installs a missing module: a sentence instead of a traceback.

`pip install evenq` installs the SDK, with gRPC and protobuf only. A test compares the table with pyproject.toml.
"""

from __future__ import annotations

from importlib.util import find_spec

EXTRA_OF = {
    "argcomplete": "cli",
    "backports": "compression",
    "celery": "celery",
    "cloudevents": "cloudevents",
    "crc32c": "server",
    "cryptography": "tls",
    "duckdb": "query",
    "fastavro": "avro",
    "faststream": "faststream",
    "fsspec": "backup",
    "h11": "console",
    "jinja2": "console",
    "kubernetes": "kubernetes",
    "lark": "server",
    "lz4": "compression",
    "numpy": "tables",
    "opentelemetry": "otel",
    "opentelemetry.exporter.otlp.proto.grpc": "otlp",
    "opentelemetry.sdk": "otlp",
    "prometheus_client": "server",
    "pyarrow": "tables",
    "pydantic": "server",
    "pyiceberg": "iceberg",
    "pyspark": "spark",
    "python_multipart": "console",
    "rich": "cli",
    "starlette": "console",
    "taskiq": "taskiq",
    "uvicorn": "console",
    "uvloop": "server",
}
"""Name of each imported package: the smallest extra that installs it."""


def sentence(program: str, error: ModuleNotFoundError) -> str:
    """Returns the instruction to install the missing package. Raises `error` itself, a defect, if no extra has it."""
    package = (error.name or "").partition(".")[0]
    if package not in EXTRA_OF:
        raise error
    return missing(program, package)


def missing(program: str, package: str, *, extra: str = "") -> str:
    """Returns the same, for a package that is known to be missing; `extra` installs more than that package."""
    extra = extra or EXTRA_OF[package]
    return (
        f'{program} needs the package {package}, which is not installed: pip install "evenq[{extra}]" '
        f'(in a clone: pip install ".[{extra}]")'
    )


def is_installed(package: str) -> bool:
    """Returns whether the package can be imported, without importing it."""
    return find_spec(package) is not None
