"""Adapters for Celery, taskiq and FastStream where calls must be signed: keys that are missing or wrong, topics that the
user may not create, and grants that are removed and returned while workers run.

Each failure is reported once, in the log of the worker or as an exception, and a worker that runs outlasts it.
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from evenq_proofs import taskiq_workers
from evenq_proofs.waiting import until, until_async

import evenq
from evenq.errors import Forbidden, Unauthorized
from evenq.faststream import EvenqBroker
from evenq.testing import LocalCluster
from tests.integration import test_celery_workers

ROOT = evenq.Credentials(access_key="root", secret_key="secret-of-root")
WORKER = evenq.Credentials(access_key="worker", secret_key="secret-of-worker")
GRANTS = """
allow = [
  { resource = "topic:*", actions = ["publish", "consume"] },
  { resource = "group:*", actions = ["consume"] },
]
"""
USERS = """
[users.evenq-internal]
secret = "secret-of-servers"
internal = true
[users.root]
secret = "secret-of-root"
admin = true
[users.worker]
secret = "secret-of-worker"
"""
WAIT_S = 300

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1_800),
    pytest.mark.cluster(
        rebalancer=False,
        users=USERS + GRANTS,
        settings={"AUTH__RELOAD_MS": "200"},
        broker_settings={"DEFAULT_START_FROM": "FIRST", "AUTO_CREATE_TOPICS": "false"},
        admin=ROOT,
        prepare=lambda admin: None,
        ready_ms_max=300_000,
    ),
]


class Grants:
    """The grants of the user `worker`."""

    def __init__(self, cluster: LocalCluster) -> None:
        self._file = Path(cluster.brokers[0].environment["EVENQ_BROKER_AUTH__USERS"])

    def remove(self) -> None:
        self._file.write_text(USERS)

    def give(self) -> None:
        self._file.write_text(USERS + GRANTS)


@pytest.fixture
def grants(cluster: LocalCluster) -> Iterator[Grants]:
    made = Grants(cluster)
    yield made
    made.give()


def admin(cluster: LocalCluster) -> evenq.Admin:
    return evenq.Admin(endpoint=cluster.endpoint, credentials=ROOT)


# ------------------------------------------------------------------------------------------------------------ Celery


def celery_environment(
    cluster: LocalCluster, folder: Path, prefix: str, user: str = "worker:secret-of-worker@"
) -> dict[str, str]:
    (folder / "results").mkdir(exist_ok=True)
    return {
        "CELERY_JOBS_BROKER": f"evenq://{user}{cluster.endpoint}/{prefix}",
        "CELERY_JOBS_RESULTS": f"file://{folder / 'results'}",
    }


def celery_client(environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Sends one task and waits for its result."""
    program = "from tests.integration import celery_jobs as j; print(j.add.delay(1, 2).get(timeout=250))"
    return subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program], cwd=test_celery_workers.ROOT,
        env={**os.environ, **environment}, capture_output=True, text=True, timeout=WAIT_S, check=False,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("user", "error"),
    [
        ("", "Unauthorized: the call is not signed by MQv2-HMAC-SHA1: give the client an access key and a secret key"),
        ("worker:wrong@", "Unauthorized: the signature is not right: unknown access key, or another secret key"),
    ],
)
def test_a_celery_client_and_a_worker_with_wrong_keys_end_with_the_cause(
    cluster: LocalCluster, tmp_path: Path, user: str, error: str
) -> None:
    environment = celery_environment(cluster, tmp_path, "wrong", user)
    sent = celery_client(environment)
    assert sent.returncode == 1
    assert sent.stderr.rstrip().endswith(error)
    worker = test_celery_workers.Worker("ann", tmp_path, environment, "-c", "1")
    try:
        assert worker.process.wait(WAIT_S) != 0
        assert worker.text.count("Unrecoverable error: Unauthorized(") == 1
    finally:
        worker.end()


@pytest.mark.parametrize(
    ("topics", "command"),
    [
        ([], "evenq topic create lone-%broadcast --queues 1"),
        (["lone-%broadcast"], "evenq topic create lone-celery --type MIXED"),
    ],
)
def test_a_celery_worker_that_may_not_create_its_topics_ends_with_the_command(
    cluster: LocalCluster, tmp_path: Path, topics: list[str], command: str
) -> None:
    """It connected again and again, with a traceback each time."""
    with admin(cluster) as operator:
        for topic in topics:
            operator.create_topic(topic, queues=1)
    worker = test_celery_workers.Worker("ann", tmp_path, celery_environment(cluster, tmp_path, "lone"), "-c", "1")
    try:
        until(lambda: worker.process.poll() is not None, lambda: worker.text[-20_000:], seconds=WAIT_S)
        assert worker.process.returncode != 0
        assert worker.text.count("Unrecoverable error: Forbidden(") == 1
        assert command in worker.text
        assert "Connection to broker lost" not in worker.text
    finally:
        worker.end()


def test_a_celery_worker_continues_when_its_grant_returns(
    cluster: LocalCluster, grants: Grants, tmp_path: Path
) -> None:
    with admin(cluster) as operator:
        operator.create_topic("shop-%broadcast", queues=1)
        operator.create_topic("shop-celery", message_type="MIXED")
        operator.create_group("shop-celery", start_from="FIRST")
    environment = celery_environment(cluster, tmp_path, "shop")
    worker = test_celery_workers.Worker("ann", tmp_path, environment, "-c", "1", "-E")
    try:
        worker.ready()
        assert celery_client(environment).stdout == "3\n"
        grants.remove()
        until(lambda: "receiving is refused" in worker.text, lambda: worker.text, seconds=WAIT_S)
        refused = celery_client(environment)
        assert "Forbidden: user worker may not" in refused.stderr
        grants.give()
        until(lambda: "receiving works after" in worker.text, lambda: worker.text, seconds=WAIT_S)
        assert celery_client(environment).stdout == "3\n"
        assert worker.text.count("queue celery: receiving is refused, trying again until it is allowed: user w") == 1
        assert "Traceback" not in worker.text
        assert worker.stop() == 0
    finally:
        worker.end()


# ------------------------------------------------------------------------------------------------------------ taskiq


async def test_a_taskiq_worker_waits_for_its_topic_and_outlasts_a_removed_grant(
    cluster: LocalCluster, grants: Grants, tmp_path: Path
) -> None:
    """taskiq's manager starts a process that ends again and again, with a traceback each time."""
    arguments = {"topic": "tasks", "group": "workers", "endpoint": cluster.endpoint}
    keys = {"access_key": WORKER.access_key, "secret_key": WORKER.secret_key}
    client = taskiq_workers.broker_of({**arguments, "keys": keys}, tmp_path)
    with pytest.raises(Forbidden, match="Create it with `evenq topic create tasks --type MIXED`, or grant `create`"):
        await client.startup()
    worker = taskiq_workers.Worker(tmp_path, {**arguments, "keys": keys})
    try:
        await until_async(
            lambda: "topic tasks does not exist, and user worker may not" in worker.log,
            lambda: worker.log,
            seconds=WAIT_S,
        )
        with admin(cluster) as operator:
            operator.create_topic("tasks", message_type="MIXED")
        await client.startup()
        first = await taskiq_workers.sent(client, "add", 1, 2)
        assert (await first.wait_result(timeout=WAIT_S)).return_value == 3
        grants.remove()
        await until_async(lambda: "receiving tasks is refused" in worker.log, lambda: worker.log, seconds=WAIT_S)
        grants.give()
        await until_async(lambda: "receiving tasks works after" in worker.log, lambda: worker.log, seconds=WAIT_S)
        second = await taskiq_workers.sent(client, "add", 3, 4)
        assert (await second.wait_result(timeout=WAIT_S)).return_value == 7
        assert worker.log.count("may not create topic") == 1
        assert worker.log.count("receiving tasks is refused") == 1
        assert worker.log.count("Started process worker-0") == 1
        assert "Traceback" not in worker.log
    finally:
        worker.kill()
        await client.shutdown()


# -------------------------------------------------------------------------------------------------------- FastStream


async def test_a_faststream_subscriber_outlasts_a_removed_grant_and_ping_needs_keys_alone(
    cluster: LocalCluster, grants: Grants, caplog: pytest.LogCaptureFixture
) -> None:
    with admin(cluster) as operator:
        operator.create_topic("orders")
    stranger = evenq.Credentials(access_key="worker", secret_key="wrong")
    async with EvenqBroker(cluster.endpoint, credentials=stranger, logger=logging.getLogger("stranger")) as broker:
        assert not await broker.ping(WAIT_S)
        with pytest.raises(Unauthorized, match="the signature is not right"):
            await broker.publish("x", "orders")
    assert "ping fails: the signature is not right" in caplog.text
    seen: list[str] = []
    broker = EvenqBroker(cluster.endpoint, credentials=WORKER, logger=logging.getLogger("subscriber"))

    @broker.subscriber("orders", group="billing")
    async def bill(body: str) -> None:
        seen.append(body)

    def refusals() -> list[str]:
        lines = [record for record in caplog.records if record.name == "subscriber"]
        return [line.message for line in lines if "user worker may not" in line.message]

    try:
        await broker.start()
        assert await broker.ping(WAIT_S), "without the grant to list brokers"
        await broker.publish("before", "orders")
        await until_async(lambda: seen == ["before"], lambda: seen, seconds=WAIT_S)
        grants.remove()
        await until_async(refusals, lambda: caplog.text, seconds=WAIT_S)

        async def forbidden() -> bool:
            try:
                await broker.publish("between", "orders")
            except Forbidden:
                return True
            return False

        await until_async(forbidden, seconds=WAIT_S)
        grants.give()

        async def allowed() -> bool:
            try:
                await broker.publish("after", "orders")
            except Forbidden:
                return False
            return True

        await until_async(allowed, seconds=WAIT_S)
        await until_async(lambda: "after" in seen, lambda: seen, seconds=WAIT_S)
        assert len(refusals()) == len(set(refusals())), "each is logged once"
    finally:
        await broker.stop()
