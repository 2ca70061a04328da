"""Defaults for Sparks that tests start: their JVMs live for seconds or minutes and see little data.

They are in variables, so a command of a page runs as it is printed, and what a program sets itself goes before them. Each
default makes a Spark cheaper to start and leaves what it does the same: without the second compiler, which pays off after
minutes; with one thread that collects garbage, not one for each processor; with its classes in one file
(`spark_classes`); without its web pages; with as few partitions behind a shuffle as there are processors here, not 200;
with PySpark as files that Python has compiled once, not as a zip that each of its processes compiles; and with Python
workers that are born with what they load (`quick_pyspark.daemon`). On a busy machine it is patient with Python processes
that it starts.
"""

from __future__ import annotations

import os
from pathlib import Path

import pyspark

from evenq_proofs.spark_classes import class_archive

_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
_DEFAULTS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.python.daemon.module": "quick_pyspark.daemon",
    "spark.python.authenticate.socketTimeout": "120s",  # until a Python process that was started calls back
}
_MODULES = Path(__file__).resolve().parents[1]


def spark_home(folder: Path) -> Path:
    """Make `folder` the installed Spark under another name, with a place of its own for logs and with PySpark as files."""
    package = Path(pyspark.__file__).parent
    modules = folder / "python" / "lib" / "pyspark.zip"  # where Spark tells its Python processes to look first
    modules.mkdir(parents=True)
    (modules / "pyspark").symlink_to(package)
    for parent in (Path(), Path("python"), Path("python", "lib")):
        for entry in (package / parent).iterdir():
            if entry.name not in {"work", "logs", "__pycache__"} and not (folder / parent / entry.name).exists():
                (folder / parent / entry.name).symlink_to(entry)
    return folder


def make_classes(java_home: str) -> None:
    """Make the file of Spark's classes now, unless it is there: minutes on a busy machine, once."""
    class_archive(java_home, _JAVA)


def quick_spark(java_home: str, folder: Path) -> dict[str, str]:
    """The variables that make every Spark of this Java quick. `folder` gets what they name."""
    archive = class_archive(java_home, _JAVA)
    # A JVM that cannot use the file says so on its standard output, where programs print what is read.
    java = f"{_JAVA} -Xlog:disable -XX:SharedArchiveFile={archive}" if archive else _JAVA
    defaults = {**_DEFAULTS, "spark.executor.extraJavaOptions": java}
    return {
        "SPARK_HOME": str(spark_home(folder / "spark")),
        "SPARK_SUBMIT_OPTS": " ".join((java, *(f'"-D{name}={value}"' for name, value in defaults.items()))),
        "SPARK_DAEMON_JAVA_OPTS": java,
        "SPARK_LAUNCHER_OPTS": _JAVA,  # of the JVM that only makes the command of the next one
        "PYTHONPATH": os.pathsep.join(filter(None, (str(_MODULES), os.environ.get("PYTHONPATH")))),
    }
