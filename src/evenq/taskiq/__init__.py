"""A broker for the task queue taskiq: tasks are messages of a topic, workers are members of a consumer group.

    from evenq.taskiq import EvenqBroker

    broker = EvenqBroker(topic="tasks", group="workers", endpoint="127.0.0.1:8081")

It needs `pip install "evenq[taskiq]"`. The guide is docs/guides/taskiq.md.
"""

from __future__ import annotations

from evenq.runtime.extras import missing

try:
    import taskiq as _taskiq  # noqa: F401 - only to name the extra if it is missing
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(missing("evenq.taskiq", "taskiq"), name=error.name) from error

from evenq.taskiq.broker import EvenqBroker

__all__ = ["EvenqBroker"]
