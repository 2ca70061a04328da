"""Results of kill loops, and the file that keeps them: one line a run."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from evenq_proofs.ledgers import append_row, commit, today

HEAD = """# Kill loops that were run

One line a run of `python tests/proofs/run.py kill_loop --ledger tests/chaos/ledger.md` (reliability T3, one copy).
Cycles: with the store alone + with a broker. Kills: by failpoint (how many of the points ended a process, and how often
the rarest did) + at a random moment, then clean stops.

| date | commit | flush | cycles | kills | slowest start | minutes | seed | verdict |
|---|---|---|---|---|---|---|---|---|
"""


@dataclass(slots=True, kw_only=True)
class Result:
    """One run."""

    flush: str
    seed: int
    store_cycles: int = 0
    broker_cycles: int = 0
    seconds: float = 0
    endings: dict[str, int] = field(default_factory=dict)
    hits: dict[str, int] = field(default_factory=dict)
    passed: dict[str, int] = field(default_factory=dict)
    start_ms_max: int = 0
    problems: list[str] = field(default_factory=list)

    @property
    def kills(self) -> str:
        """How the processes ended."""
        hit = [count for count in self.hits.values() if count]
        return (
            f"{sum(hit)} ({len(hit)} of {len(self.hits)}, {min(self.hits.values(), default=0)}) + "
            f"{self.endings.get('random moment', 0)}, {self.endings.get('clean stop', 0)}"
        )

    def text(self) -> str:
        """For people."""
        lines = [f"{point:28} {self.hits[point]:6} kills {self.passed[point]:9} passings" for point in self.hits]
        cycles = self.store_cycles + self.broker_cycles
        lines += [
            (
                f"{self.flush}: {cycles} cycles ({self.store_cycles} store, {self.broker_cycles} broker) in "
                f"{self.seconds:.0f} s ({1_000 * self.seconds / max(1, cycles):.0f} ms each), seed {self.seed}"
            ),
            (
                f"kills by failpoint (points, fewest) + random, clean stops: {self.kills}; "
                f"slowest start {self.start_ms_max} ms"
            ),
            *(f"WRONG: {problem}" for problem in self.problems),
            "verdict: " + ("wrong" if self.problems else "0 lost, 0 duplicates after an acknowledged ack, files clean"),
        ]
        return "\n".join(lines) + "\n"


def append_line(path: Path, result: Result) -> None:
    """Add one line to the ledger, which is begun if it is not there."""
    cells = [
        today(), commit(), result.flush, f"{result.store_cycles} + {result.broker_cycles}", result.kills,
        f"{result.start_ms_max} ms", f"{result.seconds / 60:.1f}", str(result.seed),
        f"{len(result.problems)} wrong" if result.problems else "clean",
    ]  # fmt: skip
    append_row(path, HEAD, cells)
