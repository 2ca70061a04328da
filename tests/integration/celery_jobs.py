"""The Celery application of test_celery_workers.py: its workers import it with `-A celery_jobs`."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from celery import Celery, group

import evenq.celery  # noqa: F401 - registers the transport

app = Celery(
    "celery_jobs",
    broker=os.environ.get("CELERY_JOBS_BROKER", "evenq://127.0.0.1:1"),
    backend=os.environ.get("CELERY_JOBS_RESULTS", "cache+memory://"),
)
app.conf.update(
    broker_connection_retry_on_startup=True,
    broker_transport_options={"visibility_timeout": int(os.environ.get("CELERY_JOBS_VISIBILITY", "30"))},
    worker_prefetch_multiplier=2,
    task_reject_on_worker_lost=True,
)


@app.task
def add(x: int, y: int) -> int:
    return x + y


@app.task
def total(numbers: list[int]) -> int:
    return sum(numbers)


@app.task(bind=True, max_retries=5)
def third_time(self: Any) -> int:
    if self.request.retries < 2:
        raise self.retry(countdown=0.2)
    return int(self.request.retries)


@app.task
def spread(count: int) -> str:
    """Sends tasks from a process of the pool."""
    result = group(add.s(number, number) for number in range(count)).apply_async()
    result.save()
    return str(result.id)


@app.task
def hang(path: str) -> None:
    Path(path).touch()
    time.sleep(600)


@app.task(acks_late=True)
def note(folder: str, name: str, seconds: float) -> str:
    """Leaves a file at its begin and another one at its end."""
    Path(folder, f"{name}.begun").touch()
    time.sleep(seconds)
    Path(folder, f"{name}.done").touch()
    return name


@app.task
def when() -> float:
    return time.time()
