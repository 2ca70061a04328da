"""Faults of a history, and the time until an operation succeeded again (RTO). Used by `check` alone."""

from __future__ import annotations

from evenq.testing.checker.report import AnomalyKind, FaultRecovery, Report, Tolerances
from evenq.testing.history import Event

__all__ = ["Faults"]


class Faults:
    def __init__(self, report: Report, limits: Tolerances) -> None:
        self._report = report
        self._limits = limits
        self._open: dict[tuple[str, str], FaultRecovery] = {}
        self._waiting: list[FaultRecovery] = []
        self._last_heal_ms: int | None = None
        self._brokers: set[str] = set()

    def begun(self, line: int, event: Event) -> None:
        fault = FaultRecovery(name=event.op, target=event.target, at_ms=event.at_ms, line=line)
        self._report.faults.append(fault)
        self._open[event.op, event.target] = fault
        self._waiting.append(fault)

    def healed(self, event: Event) -> None:
        """Notes the end of a fault; a heal line without its fault is ignored."""
        fault = self._open.pop((event.op, event.target), None)
        if fault is not None:
            fault.heal_ms = event.at_ms
            self._last_heal_ms = event.at_ms

    def broken_since(self, at_ms: int) -> bool:
        """Returns whether a fault was open at some time since `at_ms`."""
        return bool(self._open) or (self._last_heal_ms is not None and self._last_heal_ms >= at_ms)

    def succeeded(self, begun_line: int, end: Event) -> None:
        """Notes that a send or receive of a queue was answered OK."""
        queue = end.queue or (end.messages[0].queue if end.messages else "")
        broker = queue.split("/", 2)[1] if queue.count("/") >= 2 else ""
        self._brokers.add(broker)
        if not self._waiting:
            return
        for fault in list(self._waiting):
            if begun_line <= fault.line:
                continue
            fault.tried = True
            if fault.target in self._brokers and fault.target != broker:
                continue
            fault.recovered_ms = end.at_ms
            self._waiting.remove(fault)
            self._judge(fault, end.at_ms)

    def finish(self, last_ms: int) -> None:
        for fault in self._waiting:
            if fault.tried:
                self._judge(fault, last_ms)

    def tried(self) -> None:
        for fault in self._waiting:
            fault.tried = True

    def _judge(self, fault: FaultRecovery, at_ms: int) -> None:
        base_ms = fault.at_ms if fault.heal_ms is None else fault.heal_ms
        if at_ms - base_ms > self._limits.recovery_ms_max:
            limit_ms = self._limits.recovery_ms_max
            text = f"{fault.name} {fault.target}: {at_ms - base_ms} ms without success, limit {limit_ms} ms"
            self._report.add(AnomalyKind.SLOW_RECOVERY, fault.line, text)
