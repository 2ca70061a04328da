"""`pyspark.daemon`, whose workers are born with what each of them would load by itself.

A worker is a fork of the daemon, and loads PySpark's module for its work and Arrow afterwards: half a second of a
processor, some hundred times in a run of the tests. Here the daemon loads them before it forks. What is ours, and gRPC,
is loaded by the workers as ever: a process that has called over gRPC cannot be forked safely.

Run by Spark (`spark.python.daemon.module`, see `evenq_proofs.quick_spark`) with the name of the workers' module unless
that is `pyspark.worker`. `tests/spark/chaos/processes.py` knows it by the end of its name.
"""

from __future__ import annotations

import gc
import importlib
import sys

from pyspark import daemon

LOADED = ("pyarrow",)


def main() -> None:
    """Load, then serve as Spark's own daemon does, until its standard input ends."""
    workers = sys.argv[1] if len(sys.argv) > 1 and sys.argv[1].startswith("pyspark") else "pyspark.worker"
    for name in (workers, *LOADED):
        importlib.import_module(name)
    gc.freeze()  # a collection in a worker does not touch what is shared
    daemon.manager()


if __name__ == "__main__":
    main()
