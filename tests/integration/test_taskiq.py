"""Real `taskiq worker` processes over real servers: results, delays, retries, kills, restarts, drains."""

from __future__ import annotations

import asyncio
import os
import signal
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from evenq_proofs.taskiq_workers import Worker, broker_of, notes, sent
from evenq_proofs.waiting import until, until_async
from taskiq.exceptions import SendTaskError

import evenq
from evenq.errors import Unauthorized
from evenq.runtime.clock import SystemClock
from evenq.taskiq import EvenqBroker
from evenq.testing import LocalCluster

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
WAIT_S = 240
SHORT_MS = 6_000
"""Invisible time of tasks that are to run again after a kill; a busy computer renews in time."""
PATIENT = ("--shutdown-timeout", "120")
"""taskiq ends a shutdown after 5 s otherwise, which a busy computer may need."""
LONG_MS = 3_600_000
"""Invisible time that no test waits for: what comes again was given back."""
USERS = """
[users.evenq-internal]
secret = "secret-of-servers-1"
internal = true
[users.worker]
secret = "secret-of-worker-1"
allow = [
  { resource = "topic:tasks", actions = ["publish", "consume", "create"] },
  { resource = "group:workers", actions = ["consume"] },
]
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with LocalCluster(rebalancer=False, folder=tmp_path_factory.mktemp("cluster")) as made:
        yield made


class Stage:
    """The tasks of one test: a topic of their own, workers, and a folder of notes."""

    def __init__(self, folder: Path, name: str, endpoint: str) -> None:
        self.folder = folder
        self.arguments: dict[str, Any] = {"topic": f"t-{name}", "group": f"g-{name}", "endpoint": endpoint}
        self.workers: list[Worker] = []

    def work(self, *options: str, retries: str = "", **arguments: Any) -> Worker:
        """Starts a worker and waits until it listens."""
        worker = Worker(self.folder, {**self.arguments, **arguments}, *options, retries=retries)
        self.workers.append(worker)
        worker.wait_listening()
        return worker

    @asynccontextmanager
    async def client(self, **arguments: Any) -> AsyncIterator[EvenqBroker]:
        broker = broker_of({**self.arguments, **arguments}, self.folder)
        await broker.startup()
        try:
            yield broker
        finally:
            await broker.shutdown()

    def let_go(self, name: str = "open") -> None:
        """Lets the tasks end that wait for this file."""
        (self.folder / name).touch()

    def began(self, name: str = "") -> list[dict[str, Any]]:
        return notes(self.folder, "begin", name)

    def ended(self, name: str = "") -> list[dict[str, Any]]:
        return notes(self.folder, "end", name)

    async def until(self, state: Callable[[], object]) -> None:
        await until_async(
            state, lambda: (notes(self.folder), [worker.log[-3_000:] for worker in self.workers]), seconds=WAIT_S
        )

    def lag(self) -> int:
        with evenq.Admin(endpoint=self.arguments["endpoint"]) as admin:
            return admin.describe_group(self.arguments["group"]).summary.lag


@pytest.fixture
def stage(cluster: LocalCluster, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Stage]:
    name = "".join(letter for letter in request.node.name if letter.isalnum())[-60:]
    made = Stage(tmp_path, name, cluster.endpoint)
    yield made
    for worker in made.workers:
        worker.kill()


async def result(task: Any) -> Any:
    return (await task.wait_result(timeout=WAIT_S)).return_value


async def test_tasks_run_in_a_worker_with_their_results_and_labels(stage: Stage) -> None:
    async with stage.client() as client:
        first = await sent(client, "add", 1, 2)  # before the group's first worker
        stage.work()
        second = await sent(client, "run", "hello", colour="red")
        assert (await result(first), await result(second)) == (3, "HELLO")
        (note,) = stage.began("hello")
        assert note["labels"]["colour"] == "red"
        await stage.until(lambda: stage.lag() == 0)


async def test_a_delayed_task_runs_after_its_delay(stage: Stage) -> None:
    stage.work()
    clock = SystemClock()
    async with stage.client() as client:
        sent_ms = clock.now_ms()
        late = await sent(client, "run", "late", delay=1.5)
        assert await result(late) == "LATE"
    (note,) = stage.began("late")
    assert note["ms"] - sent_ms >= 1_500


@pytest.mark.parametrize("retries", ["simple", "smart"])
async def test_a_failed_task_is_retried_by_the_middleware(stage: Stage, retries: str) -> None:
    stage.work(retries=retries)
    async with stage.client() as client:
        task = await sent(client, "retried", "stubborn", 2, retry_on_error=True)
        assert await result(task) == "STUBBORN"
    first, second, third = (note["ms"] for note in stage.began())
    if retries == "smart":
        assert min(second - first, third - second) >= 300, "it came before its delay"
    assert len(stage.ended()) == 1
    await stage.until(lambda: stage.lag() == 0)


async def test_no_task_of_a_killed_worker_is_lost(stage: Stage) -> None:
    names = [f"task-{number}" for number in range(30)]
    async with stage.client() as client:
        killed = stage.work("--max-async-tasks", "8", invisible_ms=SHORT_MS)
        for name in names:
            await sent(client, "run", name, 0, "open")
        await stage.until(lambda: len(stage.began()) == 8)
        killed.kill()
        stage.let_go()
        stage.work("--max-async-tasks", "8", invisible_ms=SHORT_MS)
        await stage.until(lambda: {note["name"] for note in stage.ended()} == set(names))
    runs = Counter(note["name"] for note in stage.began())
    assert sorted(runs.values()) == [1] * 22 + [2] * 8, "those that ran run again, the others ran once"
    await stage.until(lambda: stage.lag() == 0)


async def test_taskiq_replaces_a_killed_child_and_its_task_runs_again(stage: Stage) -> None:
    stage.work(invisible_ms=SHORT_MS)
    async with stage.client() as client:
        task = await sent(client, "run", "killed", 0, "open")
        await stage.until(stage.began)
        os.kill(stage.began()[0]["pid"], signal.SIGKILL)
        stage.let_go()
        assert await result(task) == "KILLED"
    pids = [note["pid"] for note in stage.began()]
    assert len(set(pids)) == 2


@pytest.mark.parametrize(("kind", "runs"), [("when_received", 1), ("when_executed", 2), ("when_saved", 2)])
async def test_the_kind_of_acknowledgement_decides_about_the_task_of_a_killed_worker(
    stage: Stage, kind: str, runs: int
) -> None:
    killed = stage.work("--ack-type", kind, invisible_ms=SHORT_MS)
    async with stage.client() as client:
        await sent(client, "run", "killed", 0, "open")
        await stage.until(stage.began)
        if kind == "when_received":
            await stage.until(lambda: stage.lag() == 0)
        killed.kill()
        stage.let_go()
        stage.work("--ack-type", kind, invisible_ms=SHORT_MS)
        marker = await sent(client, "run", "marker", delay=SHORT_MS * 2 / 1_000)  # after what was invisible
        assert await result(marker) == "MARKER"
        await stage.until(lambda: stage.lag() == 0)
    assert len(stage.began("killed")) == runs


async def test_a_task_longer_than_its_invisible_time_runs_once(stage: Stage) -> None:
    for _ in range(2):
        stage.work(invisible_ms=SHORT_MS)
    async with stage.client() as client:
        task = await sent(client, "run", "long", 0, "open")
        await stage.until(stage.began)
        marker = await sent(client, "run", "marker", delay=SHORT_MS * 2 / 1_000)
        assert await result(marker) == "MARKER"
        stage.let_go()
        assert await result(task) == "LONG"
        await stage.until(lambda: stage.lag() == 0)
    assert len(stage.began("long")) == 1


async def test_a_busy_worker_keeps_no_task_from_an_idle_one(stage: Stage) -> None:
    stage.work("--max-async-tasks", "1", invisible_ms=LONG_MS)
    async with stage.client() as client:
        held = await sent(client, "run", "held", 0, "open")
        await stage.until(stage.began)
        stage.work("--max-async-tasks", "1", invisible_ms=LONG_MS)
        others = [await sent(client, "run", f"other-{number}") for number in range(10)]
        assert [await result(other) for other in others] == [f"OTHER-{number}" for number in range(10)]
        stage.let_go()
        assert await result(held) == "HELD"
    assert {note["pid"] for note in stage.began("held")}.isdisjoint(
        note["pid"] for note in stage.began() if note["name"] != "held"
    )


async def test_higher_priorities_run_first(stage: Stage) -> None:
    async with stage.client(priorities=10) as client:
        tasks = [await sent(client, "run", f"p{priority}", priority=priority) for priority in (1, 9, 4, 9, 0)] + [
            await sent(client, "run", "delayed", priority=9, delay=0.5)
        ]
        stage.work("--max-async-tasks", "1", priorities=10)
        await asyncio.gather(*map(result, tasks))
    names = [note["name"] for note in stage.began() if note["name"] != "delayed"]
    assert names == ["p9", "p9", "p4", "p1", "p0"]


async def test_workers_of_other_topics_run_the_tasks_with_that_label(stage: Stage) -> None:
    slow = f"{stage.arguments['topic']}-slow"
    stage.work()
    stage.work(topic=slow, group=f"{slow}-group")
    async with stage.client() as client:
        for name, labels in (("quick", {}), ("slow", {"queue_name": slow})):
            assert await result(await sent(client, "run", name, **labels)) == name.upper()
    (quick_note,), (slow_note,) = stage.began("quick"), stage.began("slow")
    assert quick_note["pid"] != slow_note["pid"]


async def test_sigterm_lets_running_tasks_end_and_leaves_the_others_to_other_workers(stage: Stage) -> None:
    stops = stage.work(*PATIENT, "--max-async-tasks", "2", invisible_ms=LONG_MS, prefetch=10)
    async with stage.client() as client:
        tasks = [await sent(client, "run", f"task-{number}", 0, f"open-{number}") for number in range(12)]
        await stage.until(lambda: len(stage.began()) == 2)
        stops.terminate()
        await stage.until(lambda: "Waiting for 2 running tasks" in stops.log)
        for number in range(12):
            stage.let_go(f"open-{number}")
        assert await asyncio.to_thread(stops.wait) == 0
        stage.work(invisible_ms=LONG_MS)
        for task in tasks:
            await result(task)
        await stage.until(lambda: stage.lag() == 0)
    assert Counter(note["name"] for note in stage.ended()).most_common(1)[0][1] == 1, "a task ran twice"


async def test_a_task_that_outlasts_the_stop_of_its_worker_runs_again_at_once(stage: Stage) -> None:
    stops = stage.work(*PATIENT, "--wait-tasks-timeout", "0.2", invisible_ms=LONG_MS)
    async with stage.client() as client:
        task = await sent(client, "run", "long", 0, "open")
        await stage.until(stage.began)
        stops.terminate()
        await asyncio.to_thread(stops.wait)
        stage.work(invisible_ms=LONG_MS)
        await stage.until(lambda: len(stage.began()) == 2)
        stage.let_go()
        assert await result(task) == "LONG"
    assert "ends with 1 unfinished tasks" in stops.log


async def test_tasks_survive_the_kill_and_the_restart_of_the_broker(tmp_path: Path) -> None:
    with LocalCluster(rebalancer=False, folder=tmp_path / "cluster") as cluster:
        stage = Stage(tmp_path, "restart", cluster.endpoint)
        try:
            worker = stage.work("--max-async-tasks", "4", invisible_ms=SHORT_MS)
            async with stage.client() as client:
                before = [await sent(client, "run", f"before-{number}", 0, "open") for number in range(8)]
                await stage.until(lambda: len(stage.began()) == 4)
                cluster.brokers[0].kill()
                during = asyncio.ensure_future(sent(client, "run", "during"))
                await stage.until(lambda: "fails" in worker.log)
                stage.let_go()  # acknowledged while no broker answers
                await asyncio.to_thread(cluster.brokers[0].restart)
                after = await sent(client, "run", "after")
                for task in (*before, await during, after):
                    await result(task)
                await stage.until(lambda: stage.lag() == 0)
        finally:
            for worker in stage.workers:
                worker.kill()


async def test_workers_use_tls_and_credentials(tmp_path: Path) -> None:
    users = tmp_path / "users.toml"
    users.write_text(USERS)
    users.chmod(0o600)
    settings = {"AUTH__ENABLED": "true", "AUTH__USERS": str(users)}
    with LocalCluster(
        rebalancer=False, folder=tmp_path / "cluster", tls=True, broker_settings=settings, nameserver_settings=settings
    ) as cluster:
        stage = Stage(tmp_path, "secured", cluster.endpoint)
        assert cluster.client_tls is not None
        stage.arguments |= {
            "ca": str(cluster.client_tls.ca),
            "keys": {"access_key": "worker", "secret_key": "secret-of-worker-1"},
            "topic": "tasks",
            "group": "workers",
        }
        try:
            stage.work()
            async with stage.client() as client:
                assert await result(await sent(client, "add", 20, 22)) == 42
            stranger = {"keys": {"access_key": "worker", "secret_key": "another-secret-22"}}
            async with stage.client(**stranger) as client:
                with pytest.raises(SendTaskError) as raised:
                    await sent(client, "add", 1, 2)
                assert isinstance(raised.value.__cause__, Unauthorized)
        finally:
            for worker in stage.workers:
                worker.kill()


def test_a_worker_waits_for_a_broker_that_is_not_there_yet(tmp_path: Path) -> None:
    with LocalCluster(rebalancer=False, folder=tmp_path / "cluster") as cluster:
        cluster.brokers[0].kill()
        stage = Stage(tmp_path, "late", cluster.endpoint)
        worker = Worker(stage.folder, stage.arguments)
        try:
            until(
                lambda: "looking for topic t-late fails, trying again" in worker.log, lambda: worker.log, seconds=WAIT_S
            )
            cluster.brokers[0].restart()
            worker.wait_listening()
        finally:
            worker.kill()
