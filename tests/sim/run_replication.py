"""`make replication-model WALKS=100000 SEED=0`: random walks of the replication model.

`--mutant-walks n` looks for mutants of its rules by walks too (tests/sim/test_replication_model.py kills all of them).
`--members` plays those in which copies come and go, `--founding` those from before the first record on, `--unclean`
those with unclean elections, `--remembering` those in which starts cannot read the record, `--mixed` a tenth of the first two each and the rest without. `--search` plays the
exhaustive scopes instead. `--walk n` plays one walk and prints its story. Exits 1 if a walk breaks an invariant, a
mutant survives, or a scope was not finished.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import resource
import sys
import time
from functools import partial
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "proofs")]

from replication_model.founding import Founding  # noqa: E402 - the line above makes it importable
from replication_model.mutants import (  # noqa: E402
    FOUNDING_MUTANTS,
    MEMBER_MUTANTS,
    MUTANTS,
    REMEMBERING_MUTANTS,
    UNCLEAN_MUTANTS,
)
from replication_model.remembering import Remembering  # noqa: E402
from replication_model.search import SCOPES, Search  # noqa: E402
from replication_model.unclean import Unclean  # noqa: E402
from replication_model.walks import ChangingCopies, Outcome, Walk  # noqa: E402
from replication_model.world import Rules, Violation  # noqa: E402

CHUNK = 50
KINDS: dict[str, type[Walk]] = {
    "": Walk,
    "members": ChangingCopies,
    "founding": Founding,
    "unclean": Unclean,
    "remembering": Remembering,
}
ALL_MUTANTS = {**MUTANTS, **MEMBER_MUTANTS, **FOUNDING_MUTANTS, **UNCLEAN_MUTANTS, **REMEMBERING_MUTANTS}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--walks", type=int, default=100_000, help="how many")
    parser.add_argument("--seed", type=int, default=0, help="the first of them")
    parser.add_argument(
        "--mutant-walks", type=int, default=0, help="walks for each mutant of the rules, at most; 0: no mutants"
    )
    parser.add_argument("--only", default="", help="mutants whose name begins so")
    parser.add_argument("--walk", type=int, default=None, help="only this one, with its story")
    parser.add_argument("--members", action="store_true", help="walks in which copies are added and removed")
    parser.add_argument("--founding", action="store_true", help="walks that begin without a record")
    parser.add_argument("--unclean", action="store_true", help="walks in which copies are elected that lack records")
    parser.add_argument("--remembering", action="store_true", help="walks in which starts cannot read the record")
    parser.add_argument(
        "--mixed", action="store_true", help="of the walks a tenth with --members and a tenth with --founding"
    )
    parser.add_argument("--search", action="store_true", help="the exhaustive scopes")
    parser.add_argument("--states", type=int, default=20_000_000, help="of one scope, at most")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes")
    options = parser.parse_args()
    kind = next((name for name in KINDS if name and getattr(options, name)), "")
    if options.walk is not None:
        return one(options.walk, kind)
    if options.search:
        return search(options.states)
    with multiprocessing.get_context("spawn").Pool(options.jobs) as pool:
        failed = sum(
            walks(pool, options.seed, count, kind) for kind, count in shares(options.walks, kind, mixed=options.mixed)
        )
        survived = mutants(pool, options.mutant_walks, options.only) if options.mutant_walks else 0
        pool.close()
        pool.join()
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    print(f"{used.ru_utime + used.ru_stime:.0f} s of processors")
    return 1 if failed or survived else 0


def shares(count: int, kind: str, *, mixed: bool) -> list[tuple[str, int]]:
    """How many walks of which kind."""
    tenth = count // 10
    parts = [("", count - 2 * tenth), ("members", tenth), ("founding", tenth)] if mixed else [(kind, count)]
    return [(name, walks_of_it) for name, walks_of_it in parts if walks_of_it]


def one(seed: int, kind: str) -> int:
    walk = KINDS[kind](seed, Rules())
    walk.world.story = []
    outcome = walk.play()
    print("\n".join(walk.world.story))
    print(outcome)
    return 1 if outcome.problem else 0


def walks(pool: multiprocessing.pool.Pool, first: int, count: int, kind: str) -> int:
    started, events, epochs, committed, healed, rounds, failed = time.monotonic(), 0, 0, 0, 0, 0, 0
    played = pool.imap_unordered(partial(played_of, name="", kind=kind), range(first, first + count), chunksize=CHUNK)
    for done, outcome in enumerate(played, start=1):
        events += outcome.events
        epochs += outcome.epochs
        committed += outcome.committed
        healed += outcome.healed_rounds > 0
        rounds = max(rounds, outcome.healed_rounds)
        if outcome.problem:
            failed += 1
            again = f"--walk {outcome.seed}{' --' + kind if kind else ''}"
            print(f"\nwalk {outcome.seed}: {outcome.problem}; again: tests/sim/run_replication.py {again}", flush=True)
        show(done, count, f"{failed} failed", started)
    seconds = time.monotonic() - started
    print(f"\n{count} walks{' with --' + kind if kind else ''}, {events} events, {epochs} epochs, {committed} records committed, {healed} healed (at most {rounds} rounds): {failed} failed")  # fmt: skip
    print(f"{seconds:.0f} s, {count / seconds:.0f} walks/s, {events / seconds:.0f} events/s")
    return failed


def mutants(pool: multiprocessing.pool.Pool, walks_max: int, only: str) -> int:
    survived = 0
    names = [name for name in ALL_MUTANTS if name.startswith(only)]
    for name in names:
        started = time.monotonic()
        for done, outcome in enumerate(
            pool.imap(partial(played_of, name=name, kind=kind_of(name)), range(walks_max), chunksize=10),
            start=1,
        ):
            if outcome.problem:
                print(f"killed: {name}, at walk {done} ({time.monotonic() - started:.0f} s): {outcome.problem[:110]}", flush=True)  # fmt: skip
                break
            show(done, walks_max, name, started)
        else:
            survived += 1
            print(f"SURVIVED: {name}, {walks_max} walks", flush=True)
    print(f"{len(names) - survived} of {len(names)} mutants killed")
    return survived


def kind_of(mutant: str) -> str:
    mutants_of = {
        "members": MEMBER_MUTANTS,
        "founding": FOUNDING_MUTANTS,
        "unclean": UNCLEAN_MUTANTS,
        "remembering": REMEMBERING_MUTANTS,
    }
    return next((kind for kind, mutants in mutants_of.items() if mutant in mutants), "")


def played_of(seed: int, *, name: str, kind: str) -> Outcome:
    return KINDS[kind](seed, ALL_MUTANTS[name] if name else Rules()).play()


def search(states_max: int) -> int:
    unfinished = 0
    for name, (mode, scope) in SCOPES.items():
        started, searched = time.process_time(), Search(Rules(), scope, mode=mode)
        try:
            result = searched.run(states_max, lambda states, waiting, name=name: bar(name, states, waiting))
        except Violation as error:  # pragma: no cover - the first state itself is wrong
            print(error)
            return 1
        seconds = time.process_time() - started
        print(f"\n{name}: {result.states} states, {result.moves} moves, {seconds:.0f} s CPU, {result.states / seconds:.0f} states/s: {'all seen' if result.complete else result.problem or 'NOT all seen'}")  # fmt: skip
        for step in result.path:
            print(f"  {step}")
        unfinished += not result.complete
    return 1 if unfinished else 0


def bar(name: str, states: int, waiting: int) -> None:
    if sys.stderr.isatty():
        print(f"\r{name}: {states} states, {waiting} to look at ", end="", file=sys.stderr, flush=True)


def show(done: int, count: int, text: str, started: float) -> None:
    rate = done / max(0.001, time.monotonic() - started)
    if not sys.stderr.isatty():
        if done % 10_000 == 0:
            print(f"{done}/{count}  {rate:.0f}/s  {text}", flush=True)
        return
    if done % 100 and done != count:
        return
    filled = 30 * done // count
    bar_text = "#" * filled + "." * (30 - filled)
    print(f"\r[{bar_text}] {done}/{count}  {rate:.0f}/s  {text} ", end="", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
