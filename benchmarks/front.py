"""Our gRPC front compared with grpcio's server: the same empty handlers (floor.py) and load, in turn, in one run.

    python benchmarks/front.py [--rounds 5] [--messages 60000]

For each load it prints the speed of both, the server's CPU per call (from /proc, steadier than the speed on a machine
with other work), and the ratio of the two: median, minimum and maximum of the rounds.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from statistics import median

from load import built, run
from servers import Server, cpu_s, floor

FRONTS = ("grpcio", "http2")


@dataclass(frozen=True, slots=True)
class Load:
    name: str
    mode: str
    flags: dict[str, object]
    per_call: int
    """Messages in one call, so that CPU is known for each call."""


LOADS = (
    Load("unary, 64 in flight", "send", {"c": 64}, 1),
    Load("unary, batches of 32", "send", {"c": 64, "batch": 32}, 32),
    Load("stream of 32 messages, and an ack", "recv", {"c": 8, "rb": 32, "ack": "batch"}, 32),
)


def measured(load: Load, server: Server, messages: int) -> tuple[float, float]:
    """Messages a second, and the server's CPU in us for each call."""
    count = messages * (4 if load.per_call > 1 else 1)
    before = cpu_s(server.pid)
    figures = run(built(), load.mode, server.address, n=count, **load.flags)
    spent = cpu_s(server.pid) - before
    calls = figures["msgs"] / load.per_call
    return figures["msgs_per_s"], spent / calls * 1_000_000


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description="grpcio's server and ours with empty handlers.")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--messages", type=int, default=60_000, help="of the unary load; the others send four times it")
    options = parser.parse_args()
    print("| load | grpcio /s | http2 /s | ratio | grpcio us a call | http2 us a call | ratio |")
    print("|---|---|---|---|---|---|---|")
    for load in LOADS:
        rows: dict[str, list[tuple[float, float]]] = {front: [] for front in FRONTS}
        # The floor's answers to sends have one entry for each message, as a broker's have.
        entries = str(load.per_call if load.mode == "send" else 1)
        with (
            floor("--front", "grpcio", "--send-entries", entries) as theirs,
            floor("--front", "http2", "--send-entries", entries) as ours,
        ):
            for turn in range(options.rounds + 1):
                order = FRONTS if turn % 2 else FRONTS[::-1]
                for front in order:
                    row = measured(load, theirs if front == "grpcio" else ours, options.messages)
                    if turn:  # the first round warms up
                        rows[front].append(row)
        print(line(load.name, rows["grpcio"], rows["http2"]), flush=True)
    return 0


def line(name: str, theirs: list[tuple[float, float]], ours: list[tuple[float, float]]) -> str:
    cells = []
    for index, form in ((0, "{:,.0f}"), (1, "{:.0f}")):
        ratios = sorted(our[index] / their[index] for their, our in zip(theirs, ours, strict=True))
        cells += [form.format(median(row[index] for row in rows)) for rows in (theirs, ours)]
        cells.append(f"{median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})")
    return f"| {name} | " + " | ".join(cells) + " |"


if __name__ == "__main__":
    raise SystemExit(main())
