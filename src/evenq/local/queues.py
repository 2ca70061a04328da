"""The entry point: `open` a folder (or none, for the memory engine), create producers and consumers, close.

One process owns a folder. A background thread syncs what was written and saves the progress, one after the other
(LQ-45, LQ-72); when it fails, no messages are accepted any more, and every caller gets the error.
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

__all__ = ["LocalQueues", "open_queues"]

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
    """Open local queues in the folder `path`, which is created if it is missing; the memory engine takes no folder.

    `clock`, `disk` and `background=False` (no thread: call `flush` yourself) are for tests. Raises SettingsError,
    StoreLocked (another process has the folder), StoreError (another engine's or version's folder), StoreCorrupted
    (damage; names file and offset).
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
        raise StoreError(f"opening {disk.describe('')} failed ({error.strerror}): see to the disk") from error
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
    """What the last process knew; in a new folder, what it is going to be."""
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
    """Queues without a server. Every method may be called by any thread."""

    def __init__(
        self, engine: Engine, disk: Disk | None, options: LocalOptions, clock: Clock, known: dict[str, Any], *,
        background: bool,
    ) -> None:  # fmt: skip
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
        self._next_number: dict[str, int] = {}
        self._next_consumer = 0
        self._saved: dict[str, Any] = {}
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
        """Progress never points behind the messages there are."""
        for group in self.progress.groups.values():
            for key, offset in group.offsets.items():
                topic = self.engine.topics.get(key[0])
                queue = topic.queues.get(key[1]) if topic else None
                end = queue.end if queue else 0
                if offset >= end:
                    log.warning(
                        "group %s: saved progress %d is beyond the end of queue %s, set back to %d",
                        group.name, offset, key, end,
                        extra={"group": group.name, "queue": key, "end": end},
                    )  # fmt: skip
                    group.offsets[key] = end - 1

    # Producers and consumers

    def producer(self, name: str) -> Producer:
        """A new producer of the topic or queue `name`. Its queue is its number: the lowest one that is free (LQ-5).

        Raises IllegalTopic for a name that is empty, longer than 127, or not of letters, digits, `%`, `_` and `-`.
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
        """A new consumer of one or more topics or queues for `group`. `name` identifies it in its group; default
        `127.0.0.1:<number>` (LQ-52). With a fixed name it gets the queues that are reserved for it.

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
        """The last message of a queue that the group has finished; -1 if none (LQ-55)."""
        return self.progress.group(group).offsets.get((name, queue_id), -1)

    # Keeping

    def flush(self, *, everything: bool = False) -> None:
        """Make everything sent and finished so far survive a power loss. The background thread does so periodically.

        `everything` also brings the consume queues up to date on disk, so that the next start reads nothing again.
        Raises StorePoisoned if the disk fails.
        """
        if self._disk is None:
            return
        with self._save_lock:
            groups = self.progress.state()  # before the sync: it names only messages that will be on disk
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
            self.engine.interrupted(error)  # what it had taken to sync is lost: a second flush would miss it
            raise
        took = self._clock.monotonic_ms() - began
        if took > SLOW_FLUSH_MS:
            log.warning("a flush of local queues took %d ms", took, extra={"took_ms": took})

    def _keep_safe(self) -> None:
        while not self._stop.wait(self.options.flush_interval_ms / 1000):
            try:
                self.flush()
            except Error as error:
                log.error("local queues stopped: %s", error, extra={"reason": str(error)})  # noqa: TRY400  # the text says it all
                return
            except Exception:
                log.exception(
                    "local queues stopped after an internal error"
                )  # and every later call is refused with the reason
                return

    def close(self) -> None:
        """Save everything and release the folder. Producers and consumers raise an error from then on. Closing twice is
        fine. Raises StorePoisoned if the disk failed.
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
