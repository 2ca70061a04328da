"""Entry point of local queues: `open` a folder (none for the memory engine), create producers and consumers, close.

Problem: messages and the progress of groups are in different files. After a crash progress must not name a message that
is missing, and two processes must not write one folder.

Idea: one process owns the folder through a lock file. A background thread repeats `flush` every 500 ms
(`flush_interval_ms`; LQ-45, LQ-72): take a copy of the progress, sync the messages, read the engine's state, replace
`offsets.json`. Invariants:

- Saved progress names only messages that are on disk, because it is copied before the messages are synced.
- One flush at a time runs, under `_save_lock`.
- After a failed or interrupted flush no more messages are accepted: each later send raises StorePoisoned.

Example, ASYNC: a message is sent at 0 ms and finished at 100 ms. After a kill at 300 ms the next start redelivers
it: the operating system has the message, and its progress was not saved. A power loss at 300 ms may lose the message;
at 600 ms both are on disk. Reference: decision 10, docs/guides/local_queues.md.
"""

from __future__ import annotations

import dataclasses
import heapq
import logging
import threading
from pathlib import Path
from typing import Any, Final

from evenq.errors import BadRequest, Error, SettingsError, StoreError, StoreLocked
from evenq.local import state_file
from evenq.local.consumer import Consumer
from evenq.local.embedded import EmbeddedEngine
from evenq.local.engine import Engine
from evenq.local.local_store import LocalEngine
from evenq.local.memory import MemoryEngine
from evenq.local.options import EngineName, LocalOptions
from evenq.local.producer import Producer
from evenq.local.progress import FolderProgress
from evenq.runtime.clock import Clock, SystemClock
from evenq.runtime.closing import Closing
from evenq.store.io.disk import Disk, RealDisk

BROKER_INNER: Final = "Broker Inner"  # LQ-51: no group can have this name
SHAPE: Final = ("file_bytes", "entries_per_file")
CONSUMERS_MAX: Final = 65_536
SLOW_FLUSH_MS: Final = 500  # LQ-33

log = logging.getLogger(__name__)


def open_queues(
    path: str | Path | None = None,
    *,
    engine: EngineName | str = EngineName.LOCAL,
    options: LocalOptions | None = None,
    clock: Clock | None = None,
    disk: Disk | None = None,
    background: bool = True,
) -> LocalQueues:
    """Opens local queues in the folder `path`, which is created if missing. The memory engine takes no folder.

    `clock`, `disk` and `background=False` (no thread: call `flush` yourself) are for tests. Raises SettingsError,
    StoreLocked (another process has the folder), StoreError (a folder of another engine or version), StoreCorrupted
    (damage; the text names file and offset).
    """
    try:
        kind = EngineName(engine)
    except ValueError:
        raise SettingsError(f"engine {engine!r} is not one of {', '.join(EngineName)}") from None
    clock = clock or SystemClock()
    options = options or LocalOptions()
    if kind is EngineName.MEMORY:
        if path is not None:
            raise SettingsError(f"the memory engine keeps nothing, so it takes no folder: leave out {str(path)!r}")
        return LocalQueues(MemoryEngine(options, clock), None, options, clock, {}, background=background)
    if path is None and disk is None:
        raise SettingsError(f"the {kind} engine needs a folder: give a path")
    try:
        disk = disk or RealDisk(Path(str(path)))
        _lock(disk)
    except OSError as error:
        raise StoreError(
            f"the folder {path} cannot be used ({error.strerror}): check its owner, mode and mount"
        ) from error
    try:
        known = _known(disk, kind, options)
        options = dataclasses.replace(options, **{name: known[name] for name in SHAPE if name in known})
        maker = LocalEngine if kind is EngineName.LOCAL else EmbeddedEngine
        made = maker(disk, options, clock, known)
        return LocalQueues(made, disk, options, clock, known, background=background)
    except OSError as error:
        disk.unlock()
        raise StoreError(f"opening {disk.describe('')} failed ({error.strerror}): check the disk") from error
    except BaseException:
        disk.unlock()
        raise


def _lock(disk: Disk) -> None:
    try:
        disk.lock()
    except BlockingIOError as error:
        owner = error.args[0] if error.args else "?"
        raise StoreLocked(
            f"the folder {disk.describe('')} is in use by process {owner}: close its queues there, or "
            "use another folder"
        ) from error


def _known(disk: Disk, kind: EngineName, options: LocalOptions) -> dict[str, Any]:
    """Returns the state that the last process saved; in a new folder, the first state, which it saves."""
    state = state_file.load(disk)
    if state is not None:
        if state.get("engine") != kind:
            raise StoreError(
                f"the folder {disk.describe('')} belongs to the engine {state.get('engine')!r}, not "
                f"{kind.value!r}: open it with that engine, or use another folder"
            )
        known = dict(state)
        known["groups"] = dict(state.get("groups", {}))
        known["inner"] = known["groups"].pop(BROKER_INNER, {})
        return known
    log.info("no saved progress in %s: starting without", disk.describe(""), extra={"folder": disk.describe("")})
    shape = {name: getattr(options, name) for name in SHAPE}
    state_file.save(disk, {"engine": kind.value, **shape})
    return shape


class LocalQueues(Closing):
    """Queues without a server, returned by `evenq.local.open`. Every method may be called by any thread."""

    def __init__(
        self,
        engine: Engine,
        disk: Disk | None,
        options: LocalOptions,
        clock: Clock,
        known: dict[str, Any],
        *,
        background: bool,
    ) -> None:
        self.engine = engine
        self.options = options
        self.progress = FolderProgress(options.window_ms)
        self.progress.restore(known.get("groups", {}))
        engine.finished_by_all = self.progress.finished_by_all
        self._disk = disk
        self._clock = clock
        self._lock = threading.Lock()
        self._save_lock = threading.Lock()
        self._numbers: dict[str, list[int]] = {}
        """By name: released numbers of producers, a heap."""
        self._next_number: dict[str, int] = {}
        """By name: the lowest number that was never used."""
        self._next_consumer = 0
        self._saved: dict[str, Any] = {}
        """The state in `offsets.json`; an equal one is not written again."""
        self._stop = threading.Event()
        self._closed = False
        self._thread: threading.Thread | None = None
        if disk is not None:
            self._bound_progress()
            self.flush()
            if background:
                self._thread = threading.Thread(target=self._keep_safe, name="evenq-local-flush", daemon=True)
                self._thread.start()

    def _bound_progress(self) -> None:
        """Sets back progress that is beyond the end of its queue."""
        for group in self.progress.groups.values():
            for key, offset in group.offsets.items():
                topic = self.engine.topics.get(key[0])
                queue = topic.queues.get(key[1]) if topic else None
                end = queue.end if queue else 0
                if offset >= end:
                    text = "group %s: saved progress %d is beyond the end of queue %s, set back to %d"
                    extra = {"group": group.name, "queue": key, "end": end}
                    log.warning(text, group.name, offset, key, end, extra=extra)
                    group.offsets[key] = end - 1

    def producer(self, name: str) -> Producer:
        """Returns a new producer of the topic or queue `name`. Its queue is its number: the lowest free one (LQ-5).

        Raises IllegalTopic unless the name has 1 to 127 letters, digits, `%`, `_` and `-`.
        """
        self.engine.check()
        self.engine.topic(name)
        with self._lock:
            free = self._numbers.setdefault(name, [])
            if free:
                number = heapq.heappop(free)
            else:
                number = self._next_number.get(name, 0)
                self._next_number[name] = number + 1
        return Producer(self.engine, name, number, self._producer_closed)

    def _producer_closed(self, name: str, number: int) -> None:
        with self._lock:
            heapq.heappush(self._numbers[name], number)

    def consumer(self, *names: str, group: str, name: str | None = None) -> Consumer:
        """Returns a new consumer of one or more topics or queues for `group`. `name` identifies it in its group; the
        default is `127.0.0.1:<number>` (LQ-52). With a fixed name it gets the queues that are reserved for it.

        Raises IllegalTopic, IllegalGroup, PreconditionFailed (the name is in use).
        """
        if not names:
            raise BadRequest("a consumer needs at least one topic or queue name")
        self.engine.check()
        with self._lock:
            number = self._next_consumer
            self._next_consumer = (number + 1) % CONSUMERS_MAX
        joined = self.progress.group(group)
        return Consumer(self.engine, joined, name or f"127.0.0.1:{number}", tuple(dict.fromkeys(names)))

    def stored_offset(self, name: str, queue_id: int, *, group: str) -> int:
        """Returns the last message of a queue that the group has finished; -1 if none (LQ-55)."""
        return self.progress.group(group).offsets.get((name, queue_id), -1)

    def flush(self, *, everything: bool = False) -> None:
        """Syncs everything sent and finished so far, so that it survives a power loss. The background thread does so
        periodically.

        `everything` also syncs the consume queues, so that the next start reads no messages again. Raises StorePoisoned
        if the disk fails.
        """
        if self._disk is None:
            return
        with self._save_lock:
            groups = self.progress.state()  # before the sync, so that it names only messages that the sync covers
            self._flush_engine(everything=everything)
            inner = self.engine.state()
            groups[BROKER_INNER] = inner.pop("inner")
            shape = {name: getattr(self.options, name) for name in SHAPE}
            kind = EngineName.LOCAL if isinstance(self.engine, LocalEngine) else EngineName.EMBEDDED
            state = {"engine": kind.value, **shape, **inner, "groups": groups}
            if state == self._saved:
                return
            try:
                state_file.save(self._disk, state)
            except OSError as error:
                raise self.engine.fail(error, self._disk.describe("")) from error
            self._saved = state

    def _flush_engine(self, *, everything: bool) -> None:
        began = self._clock.monotonic_ms()
        try:
            self.engine.flush(everything=everything)
        except BaseException as error:
            self.engine.interrupted(error)  # a second flush would not sync what this one had taken
            raise
        took = self._clock.monotonic_ms() - began
        if took > SLOW_FLUSH_MS:
            log.warning("a flush of local queues took %d ms", took, extra={"took_ms": took})

    def _keep_safe(self) -> None:
        while not self._stop.wait(self.options.flush_interval_ms / 1000):
            try:
                self.flush()
            except Error as error:
                log.error("local queues stopped: %s", error, extra={"reason": str(error)})  # noqa: TRY400  # the text is complete
                return
            except Exception:
                log.exception("local queues stopped after an internal error")  # later sends are refused with the reason
                return

    def close(self) -> None:
        """Saves everything and releases the folder. Later calls raise errors. Raises StorePoisoned if the
        disk failed.
        """
        with self._lock:
            if self._closed:
                return
            self._closed = True
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
        try:
            self.flush(everything=True)
        finally:
            self.engine.close()
            if self._disk is not None:
                self._disk.unlock()
