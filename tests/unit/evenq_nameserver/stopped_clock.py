"""The clock of a process that is stopped for some time, as by SIGSTOP."""

from evenq.runtime.clock import FakeClock


class Stopped(FakeClock):
    """Its process stands still once, for some time."""

    pause_ms = stopped_ms = 0

    def monotonic_ms(self) -> int:
        return super().monotonic_ms() + self.stopped_ms

    async def sleep_ms(self, duration_ms: float) -> None:
        await super().sleep_ms(duration_ms)
        self.stopped_ms, self.pause_ms = self.stopped_ms + self.pause_ms, 0
