"""All pending timers of a store: put, ended, taken when due. Plain data: time comes in, disk jobs go out.

Problem: a store may have millions of timers with arbitrary due times, such as messages that are delayed by days. Memory
must stay bounded, the next due timer must be found quickly, each one can be cancelled by its id, and none may be lost
or given twice.

Idea: a log-structured merge tree. New timers go to a table in memory: a heap by due time and a dictionary by id. A full
table is written as a run, an immutable sorted file (`SpillJob`), and leaves memory when the file exists. Too many runs
are merged (`MergeJob`). Of each run only the next keys are in memory (`ReadJob`). `due` takes the smallest key of all
tables and runs. The id of a timer that ends while a run has its entry goes to `_ended`; the dead entry is skipped when
it is reached, and left out of merges.

Example: 1,000,000 timers are put with the default sizes. 30 full tables of 32,768 timers become runs, which are merged
until at most 8 are left; 16,960 timers stay in the table. Each run has about 4,096 keys in memory, so at most about
50,000 of the 1,000,000 timers are in memory.

Invariants (`check` tests some of them):
- Every pending timer is in exactly one place: a table, a run (after its used part, and not in `_ended`), or `_taken`.
- `_ended` has only timers whose dead entry is still in some run.
- A source that is being copied to a run stays in use. Timers taken from it meanwhile are in its `gone`, and
  become `_ended` when the run exists.
- Timers in `_aside` do not come due by themselves, but can be ended, held and moved like all others.
- Timers in `_held` do not fire before they end or are released.

Called on the loop (or by recovery, before there is one).

References: RD-17, RD-18; decision record 13 (what a timer of the store is); O'Neil et al., "The Log-Structured
Merge-Tree", Acta Informatica 33, 1996.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from evenq.store.timers.keys import due_of, id_of, key_of, limit_of
from evenq.store.timers.manifest import Manifest, RunUse
from evenq.store.timers.merging import MergeJob, ReadJob, SpillJob, WriteJob
from evenq.store.timers.runs import BLOCK_ENTRIES, RunFile
from evenq.store.timers.sources import EndedTimers, Source, TimerRun, TimerTable

TABLE_MAX: Final = 32_768
AHEAD: Final = 8 * BLOCK_ENTRIES
RUNS_MAX: Final = 8
MERGE_WIDTH: Final = 6
RUNS_FULL: Final = 3  # times the wanted number of runs: from there on merging comes before writing more
ENDED_MAX: Final = 262_144  # ended timers remembered until all runs are merged without them


class PendingTimers:
    """Pending timers by id, the log offset of a timer's frame. Ids are put in ascending order and never twice."""

    def __init__(self, *, table_max: int = TABLE_MAX, ahead: int = AHEAD, runs_max: int = RUNS_MAX) -> None:
        """`table_max`: timers of a full table; `ahead` (whole blocks): keys of a run in memory; `runs_max`: before
        merges.
        """
        self._table_max = table_max
        self._ahead = ahead
        self._runs_max = runs_max
        self._next_run = 1
        """Number of the next run: larger than all that a manifest may name."""
        self._table = TimerTable()
        """New timers; becomes a run when it is full."""
        self._returned = TimerTable()
        """Timers that were given back: never written to a run, because a dead entry of them may be in one."""
        self._aside = TimerTable()
        """Timers that cannot fire for now: never written to a run either."""
        self._full: list[TimerTable] = []
        """Full tables, oldest first, until their run exists."""
        self._runs: list[TimerRun] = []
        """Runs with entries that are not used up."""
        self._ended = EndedTimers()
        self._taken: dict[int, bytes] = {}
        """Id to key of timers that are being fired."""
        self._held: set[int] = set()
        """Ids of timers that must not fire now; those that come due meanwhile wait in `_taken`."""
        self._writing: WriteJob | None = None
        """The write job in work; one at a time."""
        self._written: tuple[Source, ...] = ()
        """Sources of `_writing`: exactly these have a `gone`."""
        self._floor = 0
        """No pending timer has a smaller id."""
        self._gone_files: list[int] = []
        """Numbers of runs that were dropped since the last `gone_files`."""

    def put(self, due_ms: int, timer_id: int, kind: int) -> None:
        """Adds a stored timer. It may be due already."""
        self._table.put(timer_id, key_of(due_ms, timer_id, kind))
        if len(self._table.live) >= self._table_max:
            self._full.append(self._table)
            self._table = TimerTable()

    def end(self, timer_id: int) -> None:
        """Removes a pending timer that fired, was cancelled, or moved, as the log says."""
        for watch in self._ended.watches:
            watch.add(timer_id)
        self._held.discard(timer_id)
        if self._taken.pop(timer_id, None) is not None:
            return
        if any(table.end(timer_id) for table in self._tables()):
            return
        # Below the floor runs have dead entries only: noting their ends would keep them in memory until a merge.
        if self._runs and timer_id >= self._floor:
            self._ended.add(timer_id)

    def due(self, now_ms: int, count_max: int) -> list[bytes]:
        """Takes up to `count_max` due timers (keys), earliest first, until `end`, `give_back` or `set_aside`."""
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
        """Makes taken timers due again that could not be fired now."""
        for key in keys:
            timer_id = id_of(key)
            if self._taken.pop(timer_id, None) is not None:
                self._returned.put(timer_id, key)

    def set_aside(self, keys: Iterable[bytes]) -> None:
        """Sets taken timers aside that cannot be fired: they stay pending, but are not due before `take_aside`."""
        for key in keys:
            timer_id = id_of(key)
            if self._taken.pop(timer_id, None) is not None:
                self._aside.put(timer_id, key)

    def take_aside(self, keys: Iterable[bytes]) -> list[bytes]:
        """Takes those of `keys` that are still aside and not held, as `due` does."""
        taken: list[bytes] = []
        for key in keys:
            timer_id = id_of(key)
            if timer_id not in self._held and self._aside.end(timer_id):
                self._take(key, taken)
        return taken

    def is_aside(self, key: bytes) -> bool:
        return id_of(key) in self._aside.live

    def next_due_ms(self) -> int | None:
        """Returns the due time of the earliest timer, perhaps too early if that one ended; None without timers."""
        heads = [head for source in self._sources() if (head := source.due_head()) is not None]
        return due_of(min(heads)) if heads else None

    def next_ready_ms(self) -> int | None:
        """Returns the same for what memory has: `due` gives it from then on. Reading ahead may bring an earlier one."""
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

    def in_memory(self, timer_id: int) -> bytes | None:
        """Returns the key of a timer that is in memory and neither being fired nor held; None without it."""
        if timer_id in self._held:
            return None
        return next((key for table in self._tables() if (key := table.live.get(timer_id)) is not None), None)

    def memory_ids(self) -> list[int]:
        """Returns every timer of memory that is not being fired. `used_runs` has further ones, some perhaps twice."""
        return [timer_id for table in self._tables() for timer_id in table.live]

    def memory_keys(self) -> Iterator[bytes]:
        """Yields the keys of the same timers."""
        return (key for table in self._tables() for key in table.live.values())

    def below(self, log_offset: int) -> list[bytes]:
        """Returns timers of memory with smaller ids that are neither being fired nor held."""
        return [
            key
            for table in self._tables()
            for timer_id, key in table.live.items()
            if timer_id < log_offset and timer_id not in self._held
        ]

    def lowest_id(self) -> int | None:
        """Returns an id below which no timer is pending: the log from there on must stay. None without timers."""
        lowest = [min(table.live) for table in self._tables() if table.live]
        lowest += [max(run.file.lowest_id, self._floor) for run in self._runs if run.left]
        return min([*lowest, *self._taken], default=None)

    def busy_below(self, log_offset: int) -> bool:
        """Whether a timer with a smaller id is being fired or held."""
        return any(timer_id < log_offset for timer_id in self._taken) or any(
            timer_id < log_offset for timer_id in self._held
        )

    def ended_ids(self) -> frozenset[int]:
        """Returns timers that ended although a run still has them."""
        return frozenset(self._ended)

    def raise_floor(self, log_offset: int) -> None:
        """Records that nothing below is pending any more, although runs may have dead entries of it."""
        self._floor = max(self._floor, log_offset)

    def watch(self) -> set[int]:
        """Returns a set that gets every timer that ends or is taken from now on, until `unwatch`, and every one that
        ended earlier and whose dead entry disappears.
        """
        watch: set[int] = set()
        self._ended.watches.append(watch)
        return watch

    def unwatch(self, watch: set[int]) -> None:
        self._ended.watches = [other for other in self._ended.watches if other is not watch]

    def hold(self, keys: Iterable[bytes], watch: set[int]) -> list[bytes]:
        """Holds those of `keys`, found since `watch`, that are pending: they do not fire until `end` or `release`."""
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
        """Releases held timers, which are pending as before."""
        for key in keys:
            self._held.discard(id_of(key))
            self.give_back([key])

    def used_runs(self) -> list[tuple[RunFile, int]]:
        """Returns every run and how much of it is used up, for a scan."""
        return [(run.file, run.used) for run in self._runs]

    def read_job(self) -> ReadJob | None:
        """Returns a job that reads ahead for the run that will be empty first; None if no run is short."""
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
        """Adds what a job read, unless its run was merged away in the meantime."""
        for run in self._runs:
            if run.file is job.run:
                run.read_on(job.start, job.keys)

    def read_failed(self, job: ReadJob) -> None:
        """Allows the next `read_job` to try again."""
        for run in self._runs:
            run.reading = run.reading and run.file is not job.run

    @property
    def wants_writing(self) -> bool:
        """Whether a table is full and not being written yet."""
        return any(table.gone is None for table in self._full)

    def begin_runs_at(self, number: int) -> None:
        """Makes `number` the smallest one of new runs."""
        self._next_run = max(self._next_run, number)

    def write_job(self) -> WriteJob | None:
        """Returns a job that writes a full table or merges runs; None if there is nothing to do, or one is in work."""
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
        """Replaces the sources of a job by its new run."""
        assert job is self._writing
        gone: set[int] = set().union(*(source.gone or () for source in self._written))
        whole = isinstance(job, MergeJob) and len(self._written) == len(self._runs) and not self._full
        self._ended.forget(job.dropped)
        if whole and isinstance(job, MergeJob):
            self._ended.forget(job.ended)  # what no run had was not pending when it ended
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
        """Leaves everything where it is; the next `write_job` tries again."""
        for source in self._written:
            source.gone = None
        self._writing, self._written = None, ()

    def gone_files(self) -> list[int]:
        """Returns runs merged away or used up since the last call; snapshots may still name them."""
        gone, self._gone_files = self._gone_files, []
        return gone

    def freeze(self) -> Manifest:
        """Returns everything as of now; cheap, for the loop."""
        keys = [key for table in self._tables() for key in table.live.values()]
        return Manifest(
            next_run=self._next_run,
            floor=self._floor,
            runs=tuple(RunUse(run.file.number, run.file.count, run.used) for run in self._runs),
            ended=frozenset(self._ended),
            keys=keys + list(self._taken.values()),
        )

    def restore(self, manifest: Manifest, files: Iterable[RunFile]) -> None:
        """Restores a manifest into an empty object; `files` are its runs, in its order."""
        self._next_run = max(self._next_run, manifest.next_run)
        self._floor = manifest.floor
        for use, file in zip(manifest.runs, files, strict=True):
            self._runs.append(TimerRun(file, use.used))
        self._ended.update(manifest.ended)
        for key in manifest.keys:
            timer_id = id_of(key)
            # A run still has a dead entry of it: in a further run it would count as ended with that one.
            table = self._returned if timer_id in self._ended else self._table
            table.put(timer_id, key)
        if len(self._table.live) >= self._table_max:
            self._full.append(self._table)
            self._table = TimerTable()

    def check(self) -> None:
        """Checks invariants; for tests."""
        assert not self._ended or self._runs
        places = [set(table.live) for table in self._tables()] + [set(self._taken)]
        assert sum(map(len, places)) == len(set().union(*places)), "a timer lies in two places"
        assert all(run.used + len(run.ahead) == run.loaded for run in self._runs)

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
        for watch in self._ended.watches:
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
            self._ended.forget(self._ended.copy())

    def _drop(self, run: TimerRun) -> None:
        self._runs = [other for other in self._runs if other is not run]
        self._gone_files.append(run.file.number)


def _key(pair: tuple[bytes, Source]) -> bytes:
    return pair[0]
