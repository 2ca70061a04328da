"""Spark's classes in one file that a JVM maps as it starts (class data sharing of Java), in place of reading and checking
fifteen thousand of them one by one: a third of what a short-lived Spark costs the processor.

The file is made once, by a small Spark that runs what the tests use, and kept in `build/` for this Java and this PySpark.
A JVM whose class path begins otherwise does without it. Java refuses folders with files in that path: so whoever uses the
file has no `SPARK_CONF_DIR`, and adds classes of its own behind Spark's (`SPARK_DIST_CLASSPATH`).
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pyspark

FOLDER = Path(__file__).resolve().parents[3] / "build"
MADE_WITHIN_S = 900
"""On a machine that does other things as well; a calm one needs twenty seconds."""
JOB = """
import sys, tempfile
from pathlib import Path
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition

class Reader(DataSourceReader, DataSourceStreamReader):
    def initialOffset(self): return {"at": 0}
    def latestOffset(self): return {"at": 4}
    def partitions(self, *_): return [InputPartition(0), InputPartition(1)]
    def read(self, _): yield from [(1,), (2,)]

class Source(DataSource):
    def schema(self): return "body int"
    def reader(self, schema): return Reader()
    def streamReader(self, schema): return Reader()

spark = SparkSession.builder.master("local[2]").config("spark.driver.memory", "512m").getOrCreate()
spark.sparkContext.setLogLevel("ERROR")
spark.dataSource.register(Source)
spark.read.format("Source").load().groupBy("body").count().collect()
folder = tempfile.mkdtemp()
writer = spark.readStream.format("Source").load().writeStream.format("parquet").option("path", folder + "/rows")
writer.option("checkpointLocation", folder + "/checkpoint").trigger(availableNow=True).start().awaitTermination(300)
spark.read.schema("body int").parquet(folder + "/rows").collect()
java = spark.sparkContext._gateway.proc
spark.stop()
java.stdin.close()  # it ends, and writes the file
java.wait(600)
"""


def class_archive(java_home: str, options: str) -> Path | None:
    """The file for this Java, made with its other `options`; None if it cannot make one."""
    java = Path(java_home, "bin", "java")
    shown = subprocess.run([java, "-version"], capture_output=True, text=True, check=False).stderr
    about = "\0".join(
        (str(java.resolve()), shown, pyspark.__version__, str(Path(pyspark.__file__).parent), options, JOB)
    )
    path = FOLDER / f"spark-{hashlib.sha256(about.encode()).hexdigest()[:12]}.jsa"
    FOLDER.mkdir(exist_ok=True)
    with (FOLDER / "spark.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # of all processes of a run one makes it
        if not path.exists():
            _make(path, java_home, options)
    return path if path.stat().st_size else None


def _make(path: Path, java_home: str, options: str) -> None:
    """An empty file says that there was none to be had, and is not tried again."""
    beside = path.with_suffix(".new")
    beside.unlink(missing_ok=True)
    environment = {name: value for name, value in os.environ.items() if name != "SPARK_CONF_DIR"}
    environment |= {
        "JAVA_HOME": java_home, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_SUBMIT_OPTS": f"{options} -Xlog:disable -XX:ArchiveClassesAtExit={beside} -Dspark.ui.enabled=false",
    }  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-c", JOB], env=environment, capture_output=True, text=True, timeout=MADE_WITHIN_S, check=False
    )
    if done.returncode or not beside.exists():
        print(f"no archive of Spark's classes, so its JVMs start slowly: {done.stdout}{done.stderr}", file=sys.stderr)
        path.touch()
    else:
        beside.rename(path)
