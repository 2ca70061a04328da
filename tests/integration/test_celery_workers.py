"""Workers of Celery, as processes, on real brokers: tasks, remote control, and workers and brokers that die.

The workers are those of `celery worker`, with its settings for production: a prefork pool, mingle, gossip and events.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from celery import chain, chord, group
from celery.exceptions import TaskRevokedError
from evenq_proofs.waiting import until
from kombu import pools

import evenq
from evenq.testing import LocalCluster
from tests.integration import celery_jobs

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1_800)]
ROOT = Path(__file__).resolve().parents[2]
WAIT_S = 300
app = celery_jobs.app


class Worker:
    """One `celery worker`."""

    def __init__(self, name: str, folder: Path, environment: dict[str, str], *arguments: str) -> None:
        self.name = f"{name}@here"
        self.log = folder / f"{name}.log"
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "celery",
                    "-A",
                    celery_jobs.__name__,
                    "worker",
                    "-n",
                    self.name,
                    "-l",
                    "info",
                    *arguments,
                ],
                cwd=ROOT,
                env={**os.environ, **environment, "C_FORCE_ROOT": "1", "PYTHONWARNINGS": "ignore"},
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def ready(self) -> Worker:
        until(lambda: " ready." in self.text or self.process.poll() is not None, lambda: self.text, seconds=WAIT_S)
        assert self.process.poll() is None, self.text
        return self

    @property
    def text(self) -> str:
        return self.log.read_text()

    def kill(self) -> None:
        """Kills the worker with its pool, as the system does when a machine is lost."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(60)

    def stop(self) -> int:
        """Ends it as a deployment does; returns the exit code."""
        self.process.terminate()
        return self.process.wait(WAIT_S)

    def end(self) -> None:
        if self.process.poll() is None:
            self.kill()


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(rebalancer=False, ready_ms_max=300_000) as running:
        yield running


@contextmanager
def workers(
    cluster: LocalCluster, folder: Path, *names: str, arguments: tuple[str, ...] = ("-c", "2")
) -> Iterator[Any]:
    """Workers of a prefix of their own, and the application as their client."""
    results = folder / "results"
    results.mkdir(exist_ok=True)
    url = f"evenq://{cluster.endpoint}/{folder.name}"
    environment = {
        "CELERY_JOBS_BROKER": url,
        "CELERY_JOBS_RESULTS": f"file://{results}",
        "CELERY_JOBS_VISIBILITY": "10",
    }
    app.conf.update(broker_url=url, broker_read_url=url, broker_write_url=url, result_backend=f"file://{results}")
    reset()

    def start(name: str, *more: str) -> Worker:
        made = Worker(name, folder, environment, *(more or arguments))
        stack.callback(made.end)
        return made

    with ExitStack() as stack:
        stack.callback(reset)
        yield start, [start(name) for name in names]


def reset() -> None:
    """Forgets the connections and results of another cluster."""
    pools.reset()
    app._after_fork()
    app._backend_cache = None
    app._local.__dict__.pop("backend", None)


@pytest.fixture(scope="module")
def pair(cluster: LocalCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Worker]]:
    """Two workers for all tests that do not end one."""
    with workers(cluster, tmp_path_factory.mktemp("pair"), "ann", "ben") as (_, running):
        yield [worker.ready() for worker in running]


def test_groups_chains_chords_and_retries(pair: list[Worker]) -> None:
    assert group(celery_jobs.add.s(n, n) for n in range(20))().get(timeout=WAIT_S) == [2 * n for n in range(20)]
    assert chain(celery_jobs.add.s(1, 2), celery_jobs.add.s(4))().get(timeout=WAIT_S) == 7
    assert chord((celery_jobs.add.s(n, n) for n in range(5)), celery_jobs.total.s())().get(timeout=WAIT_S) == 20
    assert celery_jobs.third_time.delay().get(timeout=WAIT_S) == 2


def test_processes_of_the_pool_send_tasks_also_those_that_are_forked_later(pair: list[Worker]) -> None:
    """A pool that grows forks while the worker receives."""
    replies = app.control.broadcast("pool_grow", arguments={"n": 1}, reply=True, timeout=30, limit=2)
    assert [list(reply.values()) for reply in replies] == [[{"ok": "pool will grow"}]] * 2
    for _ in range(6):
        made = app.GroupResult.restore(celery_jobs.spread.delay(3).get(timeout=WAIT_S))
        assert made.get(timeout=WAIT_S) == [0, 2, 4]


def test_a_countdown_waits_at_the_broker_and_not_in_a_worker(pair: list[Worker]) -> None:
    result = celery_jobs.when.apply_async(countdown=600)
    sent = time.time()
    soon = celery_jobs.when.apply_async(countdown=2)
    assert soon.get(timeout=WAIT_S) >= sent + 1.9
    scheduled = app.control.inspect(timeout=60, limit=2).scheduled()
    assert scheduled == {"ann@here": [], "ben@here": []}
    result.revoke()


def test_remote_control_reaches_each_worker_and_leaves_nothing(pair: list[Worker], cluster: LocalCluster) -> None:
    with evenq.Admin(endpoint=cluster.endpoint) as admin:
        before = names(admin)
        inspect = app.control.inspect(timeout=60, limit=2)
        assert inspect.ping() == {"ann@here": {"ok": "pong"}, "ben@here": {"ok": "pong"}}
        assert inspect.ping() == {"ann@here": {"ok": "pong"}, "ben@here": {"ok": "pong"}}
        only = app.control.inspect(destination=["ben@here"], timeout=60)
        assert set(only.active_queues() or {}) == {"ben@here"}
        [queue] = (only.active_queues() or {})["ben@here"]
        assert queue["name"] == "celery"
        assert names(admin) == before
        assert {name.replace("pair0", "P") for name in before} >= {"topic P-celery", "group P-celery"}
        assert len(before) == 3, f"besides them only the topic of broadcasts: {before}"


def names(admin: evenq.Admin) -> set[str]:
    return {f"topic {one.topic}" for one in admin.list_topics()} | {f"group {one.group}" for one in admin.list_groups()}


def test_workers_know_each_other_by_gossip_and_mingle(pair: list[Worker]) -> None:
    assert all("mingle: searching for neighbors" in worker.text for worker in pair)
    found = app.control.inspect(destination=["ann@here"], timeout=60).hello(from_node="test@here")
    assert set(found or {}) == {"ann@here"}


def test_a_waiting_task_and_a_running_one_are_revoked(pair: list[Worker], tmp_path: Path) -> None:
    running = celery_jobs.hang.delay(str(tmp_path / "runs"))
    until((tmp_path / "runs").exists, seconds=WAIT_S)
    running.revoke(terminate=True)
    with pytest.raises(TaskRevokedError):
        running.get(timeout=WAIT_S)
    waiting = celery_jobs.add.apply_async((1, 1), countdown=3)
    waiting.revoke()
    with pytest.raises(TaskRevokedError):
        waiting.get(timeout=WAIT_S)


def test_events_reach_a_monitor(pair: list[Worker]) -> None:
    seen: list[dict[str, Any]] = []
    with app.connection_for_read() as connection:
        receiver = app.events.Receiver(connection, handlers={"worker-heartbeat": seen.append})

        def heard() -> bool:
            with suppress(TimeoutError):
                for _ in receiver.consume(limit=1, timeout=1, wakeup=False):
                    pass
            return {event["hostname"] for event in seen} == {"ann@here", "ben@here"}

        until(heard, lambda: seen, seconds=WAIT_S)


def test_a_broker_that_restarts_does_not_end_a_worker(pair: list[Worker], cluster: LocalCluster) -> None:
    cluster.brokers[0].restart(timeout_ms=300_000)
    assert celery_jobs.add.apply_async((1, 1), retry=True).get(timeout=WAIT_S) == 2
    assert set(until(lambda: app.control.inspect(timeout=60, limit=2).ping(), seconds=WAIT_S)) == {
        "ann@here",
        "ben@here",
    }
    assert all(worker.process.poll() is None for worker in pair)


def test_a_worker_that_is_killed_loses_no_task(cluster: LocalCluster, tmp_path: Path) -> None:
    """Late acknowledgement: what it had is delivered again after the visibility timeout of 10 s."""
    with workers(cluster, tmp_path, "ann") as (start, [first]):
        first.ready()
        todo = [f"t{number}" for number in range(8)]
        for name in todo:
            celery_jobs.note.delay(str(tmp_path), name, 3)
        until(lambda: len(list(tmp_path.glob("*.begun"))) >= 2, seconds=WAIT_S)
        first.kill()
        assert len(list(tmp_path.glob("*.done"))) < len(todo)
        second = start("ben").ready()
        until(lambda: len(list(tmp_path.glob("*.done"))) == len(todo), lambda: second.text, seconds=WAIT_S)
        assert second.stop() == 0


def test_a_worker_that_stops_finishes_its_tasks_and_returns_the_others(cluster: LocalCluster, tmp_path: Path) -> None:
    with workers(cluster, tmp_path, "ann", arguments=("-c", "1")) as (start, [first]):
        first.ready()
        todo = [f"t{number}" for number in range(4)]
        for name in todo:
            celery_jobs.note.delay(str(tmp_path), name, 4)
        until(lambda: list(tmp_path.glob("*.begun")), seconds=WAIT_S)
        assert first.stop() == 0
        done = {path.stem for path in tmp_path.glob("*.done")}
        assert done == {path.stem for path in tmp_path.glob("*.begun")}, "a begun task is finished"
        assert len(done) < len(todo)
        for path in tmp_path.glob("*.begun"):
            path.unlink()
        second = start("ben", "-P", "threads", "-c", "4").ready()
        until(lambda: len(list(tmp_path.glob("*.done"))) == len(todo), lambda: second.text, seconds=WAIT_S)
        assert {path.stem for path in tmp_path.glob("*.begun")} == set(todo) - done, "no task runs twice"
        assert second.stop() == 0


def test_results_come_back_over_the_transport(cluster: LocalCluster, tmp_path: Path) -> None:
    """`rpc://`: results are messages to a queue of the client's process."""
    url = f"evenq://{cluster.endpoint}/rpc"
    environment = {"CELERY_JOBS_BROKER": url, "CELERY_JOBS_RESULTS": "rpc://"}
    worker = Worker("ann", tmp_path, environment, "-c", "1")
    program = (
        "import celery; from tests.integration import celery_jobs as j; "
        "print(j.add.delay(1, 2).get(timeout=250), celery.group(j.add.s(n, n) for n in range(9))().get(timeout=250))"
    )
    try:
        worker.ready()
        output = subprocess.run(
            [sys.executable, "-c", program], cwd=ROOT, env={**os.environ, **environment}, capture_output=True, text=True,
            timeout=WAIT_S, check=False,
        )  # fmt: skip
        assert output.stdout == "3 [0, 2, 4, 6, 8, 10, 12, 14, 16]\n", output.stderr
        assert worker.stop() == 0
    finally:
        worker.end()
