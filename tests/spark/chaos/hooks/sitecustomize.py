"""Ends a process exactly where the kill loop wants it. Python imports this at its start when the folder is on PYTHONPATH.

`CHAOS_HOOKS` names a folder. A file there with the name of a point arms it: the first process, of Spark's or of the
brokers, that passes the point takes the file away and ends by SIGKILL; if the file holds process ids, these end instead
and who passed goes on. So each arming hits once, however many processes pass. The first word of the file is the number
of the driver (`CHAOS_DRIVER`) whose processes count: those of one that was killed before may live on for a while, and
must not take the blow for the living. `*` is for all. Points of brokers are those of
`evenq.runtime.failpoints`; `LogHooks.java` does the same for the logs of Spark's checkpoints.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from typing import Any

FOLDER, DRIVER = os.environ.get("CHAOS_HOOKS", ""), os.environ.get("CHAOS_DRIVER", "")


def reached(point: str) -> None:
    """A process passes this point."""
    armed, taken = os.path.join(FOLDER, point), os.path.join(FOLDER, "hit", f"{point}.{os.getpid()}")
    try:
        with open(armed, encoding="utf-8") as file:
            of, *words = file.read().split()
        if of not in {"*", DRIVER}:
            return
        os.rename(armed, taken)
    except FileNotFoundError:
        return
    victims = [int(word) for word in words]
    for pid in victims or [os.getpid()]:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    if not victims:
        threading.Event().wait()


def note(group: str, **noted: Any) -> None:
    """Write down what the query of a group did."""
    with open(os.path.join(FOLDER, "notes", group), "a", encoding="utf-8") as file:
        file.write(json.dumps(noted) + "\n")


def around(point: str, function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def hooked(*args: Any, **named: Any) -> Any:
        reached(f"{point}.before")
        answer = function(*args, **named)
        reached(f"{point}.after")
        return answer

    return hooked


def failpoints(module: Any) -> None:
    passing = module.passing

    def hooked(name: str) -> None:
        passing(name)
        reached(f"broker.{name}")

    module.passing = hooked


def stream(module: Any) -> None:
    reader = module.StreamReader
    for name, point in (("initialOffset", "source.initial"), ("partitions", "source.plan")):
        setattr(reader, name, around(point, getattr(reader, name)))
    latest = around("source.latest", reader.latestOffset)

    @functools.wraps(reader.latestOffset)
    def latest_offset(self: Any, start: Any, limit: Any) -> Any:
        """Each trigger of a query is noted in a file: the place where its batch begins."""
        (brokers,) = start["q"].values()
        ends = {f"{broker}/{one}": at for broker, queues in brokers.items() for one, at in queues.items()}
        note(self._options.group, ends=ends)
        return latest(self, start, limit)

    reader.latestOffset = latest_offset


def cluster(module: Any) -> None:
    commit = module.commit

    @functools.wraps(commit)
    def hooked(address: str, group: str, positions: Any, **named: Any) -> Any:
        """Progress that a broker has taken is noted, too."""
        answer = commit(address, group, positions, **named)
        note(group, committed={f"{one.broker_name}/{one.queue_id}": at for one, at in positions.items()})
        return answer

    module.commit = hooked


def scanning(module: Any) -> None:
    read = module.read

    @functools.wraps(read)
    def hooked(*args: Any, **named: Any) -> Iterator[Any]:
        for batch in read(*args, **named):
            yield batch
            reached("source.read.middle")
        reached("source.read.after")

    module.read = hooked


def sink_cluster(module: Any) -> None:
    for name, point in (("coordinator_of", "sink.begin"), ("stage", "sink.stage"), ("decide", "sink.decide")):
        setattr(module, name, around(point, getattr(module, name)))


def sink_writer(module: Any) -> None:
    module.StreamWriter.write = around("sink.task", module.StreamWriter.write)


PATCHES: dict[str, Callable[[Any], None]] = {
    "evenq.runtime.failpoints": failpoints,
    "pyspark_evenq.source.stream": stream,
    "pyspark_evenq.brokers.cluster": cluster,
    "pyspark_evenq.source.scanning": scanning,
    "pyspark_evenq.sink.cluster": sink_cluster,
    "pyspark_evenq.sink.writer": sink_writer,
}


class Finder(MetaPathFinder):
    """Lets the patches run right after their modules."""

    def find_spec(self, name: str, path: Any, target: Any = None) -> ModuleSpec | None:
        if name not in PATCHES:
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is None or spec.loader is None:
            return None
        execute = spec.loader.exec_module

        def exec_module(module: Any) -> None:
            execute(module)
            PATCHES[name](module)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


if FOLDER:
    sys.meta_path.insert(0, Finder())
