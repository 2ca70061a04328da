"""The loop over rounds: `store` cycles with the store alone, `broker` ones with a real broker, side by side in time."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from evenq.runtime.clock import SystemClock
from evenq_proofs.kill_loop.broker_rounds import BrokerRound
from evenq_proofs.kill_loop.campaign import Campaign
from evenq_proofs.kill_loop.ledger import Result
from evenq_proofs.kill_loop.store_rounds import StoreRound

STORE_CYCLES: Final = 12
"""Cycles of one folder."""
BROKER_CYCLES: Final = 6


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a run is."""

    done: int
    wanted: int
    seconds: float
    points: int
    seed: int


class KillLoop:
    """One run. Everything that is chosen comes from `seed`; when a process dies and how threads meet does not."""

    def __init__(
        self, folder: Path, *, flush: str, seed: int, cycles: int, broker_share: float = 0.1,
        show: Callable[[Progress], None] = lambda _: None,
    ) -> None:  # fmt: skip
        """`folder` keeps what is wrong; data of rounds that were right is removed."""
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._flush = flush
        self._show = show
        self._seed = seed
        self._rng = random.Random(seed)
        self._wanted = cycles
        self._broker_wanted = round(cycles * broker_share)
        self._campaign = Campaign(self._rng, folder / "failpoints")
        self._clock = SystemClock()
        self._result = Result(flush=flush, seed=seed)

    def run(self) -> Result:
        """All cycles, or those up to the first round in which something was wrong."""
        result, begun_ms, number = self._result, self._clock.monotonic_ms(), 0
        while not result.problems and (left := self._wanted - result.store_cycles - result.broker_cycles) > 0:
            number += 1
            done = result.store_cycles + result.broker_cycles
            broker_left = self._broker_wanted - result.broker_cycles
            folder = self._folder / f"round-{number}"
            if broker_left > 0 and (
                broker_left >= left or result.broker_cycles * self._wanted <= done * self._broker_wanted
            ):
                self._broker_round(folder, min(BROKER_CYCLES, broker_left))
            else:
                self._store_round(folder, min(STORE_CYCLES, left - broker_left))
            result.seconds = (self._clock.monotonic_ms() - begun_ms) / 1000
            result.hits, result.passed = self._campaign.hits(), self._campaign.passed()
            points = sum(1 for hits in result.hits.values() if hits)
            done = result.store_cycles + result.broker_cycles
            self._show(Progress(done, self._wanted, result.seconds, points, self._seed))
        result.endings = {str(ending): count for ending, count in self._campaign.endings.items()}
        return result

    def _store_round(self, folder: Path, cycles: int) -> None:
        one = StoreRound(self._campaign, folder, flush=self._flush)
        self._ended(one, one.run(cycles))
        self._result.store_cycles += cycles

    def _broker_round(self, folder: Path, cycles: int) -> None:
        one = BrokerRound(self._campaign, folder, flush=self._flush)
        self._ended(one, one.run(cycles))
        self._result.broker_cycles += cycles

    def _ended(self, one: StoreRound | BrokerRound, problems: list[str]) -> None:
        self._result.start_ms_max = max(self._result.start_ms_max, one.start_ms_max)
        self._result.problems += [f"{one.folder}: {problem}" for problem in problems]
