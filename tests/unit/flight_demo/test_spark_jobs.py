"""Jobs in a process of their own, with modules that need no Spark."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from flight_demo.spark_jobs import EXAMPLES, SparkJobs, tail_of

from evenq.errors import InternalError

QUICK = """
def main(arguments):
    print('{"rows": 7}', flush=True)
    open(arguments[0], "a").write("ran ")
"""
WAITING = """
import signal, threading
def main(arguments):
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    print('{"rows": 1}', flush=True)
    stop.wait(60)
"""


@pytest.fixture
def jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SparkJobs]:
    folder = tmp_path / EXAMPLES
    folder.mkdir(parents=True)
    (folder / "quick.py").write_text(QUICK)
    (folder / "waiting.py").write_text(WAITING)
    (folder / "broken.py").write_text("def main(arguments): raise ValueError('it always does')")
    monkeypatch.chdir(tmp_path)
    made = SparkJobs(tmp_path / "spark.log")
    yield made
    made.close()
    made.close()


def test_jobs_run_one_after_the_other_in_one_process(jobs: SparkJobs, tmp_path: Path) -> None:
    for _ in range(2):
        jobs.run("quick", str(tmp_path / "out"), seconds=60)
        assert not jobs.running
        assert jobs.rows == 7
    assert (tmp_path / "out").read_text() == "ran ran "


def test_a_job_that_runs_until_it_is_told_ends_then_and_the_next_one_can_begin(jobs: SparkJobs, tmp_path: Path) -> None:
    jobs.begin("waiting")
    while not jobs.rows:
        assert jobs.running
    with pytest.raises(InternalError, match="waiting has not ended after 0 s"):
        jobs.wait(0)
    jobs.interrupt()
    jobs.wait(60)
    jobs.run("quick", str(tmp_path / "out"), seconds=60)


def test_a_job_that_fails_is_told_with_the_end_of_its_log(jobs: SparkJobs, tmp_path: Path) -> None:
    with pytest.raises(InternalError, match=r"broken ended with 1; its log is .*(?s:.*)it always does"):
        jobs.run("broken", seconds=60)
    with pytest.raises(InternalError, match="quick ended with 1"):
        jobs.run("quick", str(tmp_path / "out"), seconds=60)


def test_a_log_is_named_with_its_last_lines(tmp_path: Path) -> None:
    log = tmp_path / "x.log"
    log.write_text("\n".join(f"line {number}" for number in range(20)))
    assert tail_of(log).splitlines() == [str(log), *(f"line {number}" for number in range(12, 20))]
