"""All pending timers of a store: put, ended, taken when due. Plain data: time comes in, disk jobs go out.

New timers go to a table in memory. A full table is written as a run (`SpillJob`) and leaves memory when the file is
there; too many runs are merged. Of each run only the next keys are in memory (`ReadJob`). Always true: every pending
timer lies in exactly one place (a table, a run behind its used part and not in `ended`, or `taken`), so none is given
twice and none is lost; `ended` holds only timers whose dead entry some run still has. What is `aside` does not come due
by itself, but can be ended, held and moved as any other.
Called on the loop (or by recovery, before there is one). Idea of the runs: log-structured merge trees.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from evenq.store.timers.keys import due_of, id_of, key_of, limit_of
from evenq.store.timers.manifest import Manifest, RunUse
from evenq.store.timers.merging import MergeJob, ReadJob, SpillJob, WriteJob
from evenq.store.timers.runs import BLOCK_ENTRIES, RunFile
from evenq.store.timers.sources import Source, TimerRun, TimerTable

__all__ = ["PendingTimers"]

TABLE_MAX: Final = 32_768
AHEAD: Final = 8 * BLOCK_ENTRIES
RUNS_MAX: Final = 8
MERGE_WIDTH: Final = 6
RUNS_FULL: Final = 3  # times the wanted number of runs: from there on merging comes before writing more
ENDED_MAX: Final = 262_144  # ended timers remembered until all runs are merged without them


class PendingTimers:
    """Timer id = log offset of its frame; ids are put in ascending order and never twice."""

    def __init__(self, *, table_max: int = TABLE_MAX, ahead: int = AHEAD, runs_max: int = RUNS_MAX) -> None:
        """`table_max` timers in a table before it is written to disk; `ahead` (whole blocks) keys of a run in memory;
        over `runs_max` runs some are merged.
        """
        self._table_max = table_max
        self._ahead = ahead
        self._runs_max = runs_max
        self._next_run = 1
        self._table = TimerTable()
        self._returned = TimerTable()  # never written to a run: a dead copy of these may lie in one
        self._aside = TimerTable()  # neither are these
        self._full: list[TimerTable] = []
        self._runs: list[TimerRun] = []
        self._ended: set[int] = set()
        self._taken: dict[int, bytes] = {}
        self._held: set[int] = set()
        self._watches: list[set[int]] = []
        self._writing: WriteJob | None = None
        self._written: tuple[Source, ...] = ()
        self._floor = 0
        self._gone_files: list[int] = []

    # -- timers -------------------------------------------------------------------------------------------------------

    def put(self, due_ms: int, timer_id: int, kind: int) -> None:
        """A timer was stored. It may be due already."""
        self._table.put(timer_id, key_of(due_ms, timer_id, kind))
        if len(self._table.live) >= self._table_max:
            self._full.append(self._table)
            self._table = TimerTable()

    def end(self, timer_id: int) -> None:
        """It fired, was cancelled, or moved, and the log says so. It must be pending; below the floor nothing is."""
        for watch in self._watches:
            watch.add(timer_id)
        self._held.discard(timer_id)
        if self._taken.pop(timer_id, None) is not None:
            return
        if any(table.end(timer_id) for table in self._tables()):
            return
        # Below the floor runs hold dead entries only: noting their ends would keep them in memory until a merge.
        if self._runs and timer_id >= self._floor:
            self._ended.add(timer_id)

    def due(self, now_ms: int, count_max: int) -> list[bytes]:
        """Take up to `count_max` timers (keys) that are due, earliest first. Each is then `taken` until `end` or
        `give_back`.
        """
        limit = limit_of(now_ms)
        taken: list[bytes] = []
        heads = self._heads(limit)
        while heads and len(taken) < count_max:
            heads.sort(key=_key)
            _, source = heads.pop(0)
            bound = heads[0][0] if heads else limit
            key = source.head(self._ended)
            while key is not None and key < limit and key <= bound and len(taken) < count_max:
                self._take(source.pop(), taken)
                key = source.head(self._ended)
            if key is not None and key < limit:
                heads.append((key, source))
        return taken

    def give_back(self, keys: Iterable[bytes]) -> None:
        """Taken timers that could not be fired now: they are due again."""
        for key in keys:
            timer_id = id_of(key)
            if self._taken.pop(timer_id, None) is not None:
                self._returned.put(timer_id, key)

    def set_aside(self, keys: Iterable[bytes]) -> None:
        """Taken timers that cannot be fired: they stay pending, but are not due again until `take_aside`."""
        for key in keys:
            timer_id = id_of(key)
            if self._taken.pop(timer_id, None) is not None:
                self._aside.put(timer_id, key)

    def take_aside(self, keys: Iterable[bytes]) -> list[bytes]:
        """Take those of `keys` that are aside still and not held, as `due` does."""
        taken: list[bytes] = []
        for key in keys:
            timer_id = id_of(key)
            if timer_id not in self._held and self._aside.end(timer_id):
                self._take(key, taken)
        return taken

    def is_aside(self, key: bytes) -> bool:
        """Whether it is neither due nor ended, but set aside."""
        return id_of(key) in self._aside.live

    def next_due_ms(self) -> int | None:
        """Due time of the earliest timer; perhaps a little earlier, if that one has ended. None without timers."""
        heads = [head for source in self._sources() if (head := source.due_head()) is not None]
        return due_of(min(heads)) if heads else None

    def next_ready_ms(self) -> int | None:
        """The same, of what memory has: `due` gives it from then on. Reading ahead may bring an earlier one."""
        heads = [head for source in self._sources() if (head := source.head(self._ended)) is not None]
        return due_of(min(heads)) if heads else None

    def __len__(self) -> int:
        memory = sum(len(table.live) for table in self._tables())
        return memory + len(self._taken) + sum(run.left for run in self._runs) - len(self._ended)

    @property
    def memory_count(self) -> int:
        """Entries of any kind that are in memory now."""
        memory = sum(len(table.live) for table in self._tables())
        return memory + len(self._taken) + len(self._ended) + sum(len(run.ahead) for run in self._runs)

    # -- by id --------------------------------------------------------------------------------------------------------

    def in_memory(self, timer_id: int) -> bytes | None:
        """The key of a timer that memory has and that is neither fired nor held."""
        if timer_id in self._held:
            return None
        return next((key for table in self._tables() if (key := table.live.get(timer_id)) is not None), None)

    def memory_ids(self) -> list[int]:
        """Every timer of memory that is not being fired; what `used_runs` have comes besides, perhaps once more."""
        return [timer_id for table in self._tables() for timer_id in table.live]

    def below(self, log_offset: int) -> list[bytes]:
        """Timers of memory with smaller ids that are neither fired nor held."""
        return [
            key
            for table in self._tables()
            for timer_id, key in table.live.items()
            if timer_id < log_offset and timer_id not in self._held
        ]

    def lowest_id(self) -> int | None:
        """No pending timer has a smaller id: nothing of the log from there on may go. None without timers."""
        lowest = [min(table.live) for table in self._tables() if table.live]
        lowest += [max(run.file.lowest_id, self._floor) for run in self._runs if run.left]
        return min([*lowest, *self._taken], default=None)

    def busy_below(self, log_offset: int) -> bool:
        """Whether a timer with a smaller id is being fired or held."""
        return any(timer_id < log_offset for timer_id in self._taken) or any(
            timer_id < log_offset for timer_id in self._held
        )

    def ended_ids(self) -> frozenset[int]:
        """Timers that ended although a run still has them."""
        return frozenset(self._ended)

    def raise_floor(self, log_offset: int) -> None:
        """Nothing below is pending any more, although runs may hold dead entries of it."""
        self._floor = max(self._floor, log_offset)

    def watch(self) -> set[int]:
        """A set that gets every timer that ends or is taken from now on, until `unwatch`."""
        watch: set[int] = set()
        self._watches.append(watch)
        return watch

    def unwatch(self, watch: set[int]) -> None:
        self._watches = [other for other in self._watches if other is not watch]

    def hold(self, keys: Iterable[bytes], watch: set[int]) -> list[bytes]:
        """Those of `keys` (found since `watch` began) that are pending still: until `end` or `release` they do not
        fire.
        """
        held = []
        for key in keys:
            timer_id = id_of(key)
            if timer_id in watch or timer_id in self._held or timer_id in self._taken:
                continue
            if timer_id not in self._ended or any(timer_id in table.live for table in self._tables()):
                self._held.add(timer_id)
                held.append(key)
        return held

    def release(self, keys: Iterable[bytes]) -> None:
        """Held timers go on as if nothing had been."""
        for key in keys:
            self._held.discard(id_of(key))
            self.give_back([key])

    # -- disk ---------------------------------------------------------------------------------------------------------

    def used_runs(self) -> list[tuple[RunFile, int]]:
        """For a scan: every run and how much of it is used up."""
        return [(run.file, run.used) for run in self._runs]

    def read_job(self) -> ReadJob | None:
        """Read ahead for the run that will be empty first, if any is short."""
        short = self._short()
        if not short:
            return None
        run = min(short, key=lambda run: (run.due_head() or b"", run.file.number))
        run.reading = True
        return ReadJob(run.file, run.loaded - run.loaded % BLOCK_ENTRIES, self._ahead)

    def read_job_needed(self) -> bool:
        """Whether some run has nothing in memory, but more in its file."""
        return any(not run.ahead and run.loaded < run.file.count for run in self._runs)

    def read_done(self, job: ReadJob) -> None:
        """Take what a job read; not if its run was merged away meanwhile."""
        for run in self._runs:
            if run.file is job.run:
                run.read_on(job.start, job.keys)

    def read_failed(self, job: ReadJob) -> None:
        """Nothing was read: the next `read_job` tries again."""
        for run in self._runs:
            run.reading = run.reading and run.file is not job.run

    @property
    def wants_writing(self) -> bool:
        """Whether a table is full and not being written yet."""
        return any(table.gone is None for table in self._full)

    def begin_runs_at(self, number: int) -> None:
        """Give new runs no smaller number."""
        self._next_run = max(self._next_run, number)

    def write_job(self) -> WriteJob | None:
        """Write a full table, or merge runs; None if nothing is to be done or something is being written."""
        self._drop_used_up()
        if self._writing is not None:
            return None
        if self._full and len(self._runs) < RUNS_FULL * self._runs_max:
            table = self._full[0]
            self._begin((table,), SpillJob(self._next_run, list(table.live.values()), ahead=self._ahead))
        else:
            merging = self._to_merge()
            if merging:
                used = [(run.file, run.used) for run in merging]
                self._begin(tuple(merging), MergeJob(self._next_run, used, frozenset(self._ended), ahead=self._ahead))
        return self._writing

    def write_done(self, job: WriteJob) -> None:
        """The new run takes the place of what it was made from."""
        assert job is self._writing
        gone: set[int] = set().union(*(source.gone or () for source in self._written))
        whole = isinstance(job, MergeJob) and len(self._written) == len(self._runs) and not self._full
        self._ended.difference_update(job.dropped)
        if whole and isinstance(job, MergeJob):
            self._ended.difference_update(job.ended)  # what no run had was not pending when it ended
        self._ended |= gone.difference(job.dropped)
        for source in self._written:
            if isinstance(source, TimerTable):
                self._full.remove(source)
            elif isinstance(source, TimerRun):
                self._drop(source)
        if job.run is not None:
            self._runs.append(TimerRun(job.run, 0, job.first_keys))
        self._writing, self._written = None, ()

    def write_failed(self) -> None:
        """No new run: everything stays where it is, and the next `write_job` tries again."""
        for source in self._written:
            source.gone = None
        self._writing, self._written = None, ()

    def gone_files(self) -> list[int]:
        """Runs merged away or used up since the last call; snapshots may still name them."""
        gone, self._gone_files = self._gone_files, []
        return gone

    # -- snapshots ----------------------------------------------------------------------------------------------------

    def freeze(self) -> Manifest:
        """Everything as of now; cheap, for the loop."""
        keys = [key for table in self._tables() for key in table.live.values()]
        return Manifest(
            next_run=self._next_run, floor=self._floor,
            runs=tuple(RunUse(run.file.number, run.file.count, run.used) for run in self._runs),
            ended=frozenset(self._ended), keys=keys + list(self._taken.values()),
        )  # fmt: skip

    def restore(self, manifest: Manifest, files: Iterable[RunFile]) -> None:
        """Become what a manifest says; `files` are its runs, in its order. For an empty one, before anything else."""
        self._next_run = max(self._next_run, manifest.next_run)
        self._floor = manifest.floor
        for use, file in zip(manifest.runs, files, strict=True):
            self._runs.append(TimerRun(file, use.used))
        self._ended.update(manifest.ended)
        for key in manifest.keys:
            timer_id = id_of(key)
            # A run still has a dead entry of it: written to a run once more, it would be taken for ended with that.
            table = self._returned if timer_id in self._ended else self._table
            table.put(timer_id, key)
        if len(self._table.live) >= self._table_max:
            self._full.append(self._table)
            self._table = TimerTable()

    def check(self) -> None:
        """Recompute what is always true. For tests."""
        assert not self._ended or self._runs
        places = [set(table.live) for table in self._tables()] + [set(self._taken)]
        assert sum(map(len, places)) == len(set().union(*places)), "a timer lies in two places"
        assert all(run.used + len(run.ahead) == run.loaded for run in self._runs)

    # -- inside -------------------------------------------------------------------------------------------------------

    def _tables(self) -> list[TimerTable]:
        return [self._table, self._returned, *self._full, self._aside]

    def _sources(self) -> list[Source]:
        return [self._table, self._returned, *self._full, *self._runs]

    def _heads(self, limit: bytes) -> list[tuple[bytes, Source]]:
        heads = [(head, source) for source in self._sources() if (head := source.head(self._ended)) is not None]
        return [(head, source) for head, source in heads if head < limit]

    def _take(self, key: bytes, taken: list[bytes]) -> None:
        timer_id = id_of(key)
        self._taken[timer_id] = key
        if timer_id in self._held:
            return  # its holder ends or releases it
        for watch in self._watches:
            watch.add(timer_id)
        taken.append(key)

    def _begin(self, sources: tuple[Source, ...], job: WriteJob) -> None:
        self._next_run += 1
        for source in sources:
            source.gone = set()
        self._writing, self._written = job, sources

    def _to_merge(self) -> list[TimerRun]:
        many = min(sum(run.left for run in self._runs) // 4, ENDED_MAX)
        if self._runs and len(self._ended) > max(self._table_max // 2, many):
            return list(self._runs)
        if len(self._runs) <= self._runs_max:
            return []
        return sorted(self._runs, key=lambda run: (run.left, run.file.number))[:MERGE_WIDTH]

    def _short(self) -> list[TimerRun]:
        return [
            run
            for run in self._runs
            if not run.reading and run.loaded < run.file.count and len(run.ahead) <= self._ahead // 2
        ]

    def _drop_used_up(self) -> None:
        for run in [run for run in self._runs if run.left == 0 and run.gone is None]:
            self._drop(run)
        if not self._runs:
            self._ended.clear()

    def _drop(self, run: TimerRun) -> None:
        self._runs = [other for other in self._runs if other is not run]
        self._gone_files.append(run.file.number)


def _key(pair: tuple[bytes, Source]) -> bytes:
    return pair[0]
