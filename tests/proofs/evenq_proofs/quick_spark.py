"""Defaults for Sparks that tests start: their JVMs live for seconds or minutes and see little data.

They stand in a `spark-defaults.conf`, so a command of a page runs as it is printed, and what a program sets itself goes
before them. Each default makes a Spark cheaper to start and leaves what it does the same: without the second compiler,
which pays off after minutes; with one thread that collects garbage, not one for each processor; without its web pages;
and with as few partitions behind a shuffle as there are processors here, not 200. On a busy machine it is patient with
Python processes that it starts.
"""

from __future__ import annotations

from pathlib import Path

__all__ = ["quick_spark"]

_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
_DEFAULTS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.driver.extraJavaOptions": _JAVA,
    "spark.executor.extraJavaOptions": _JAVA,
    "spark.python.authenticate.socketTimeout": "120s",  # until a Python process that was started calls back
}


def quick_spark(folder: Path) -> dict[str, str]:
    """Write the defaults into `folder`, and give the variables by which every Spark finds them."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = [f"{name} {value}\n" for name, value in _DEFAULTS.items()]
    (folder / "spark-defaults.conf").write_text("".join(lines))
    return {"SPARK_CONF_DIR": str(folder), "SPARK_DAEMON_JAVA_OPTS": _JAVA}
