"""A deterministic world in one thread: virtual time, processes that are paused and killed, a network that misbehaves.

`loop` runs real asyncio code without ever waiting for real; `network` stands in for gRPC; `history` keeps what happened
and `checks` judges it. Nothing here knows which programs run: `tests/sim` builds the cluster and the faults. The same
seed gives the same history, byte by byte.
"""

from evenq_proofs.sim.checks import Problem, judge
from evenq_proofs.sim.history import Event, History
from evenq_proofs.sim.loop import CALLER, PROCESS, ProcessClock, SimProcess, VirtualLoop, ended
from evenq_proofs.sim.network import LinkFault, ProcessNet, SimNet

__all__ = [
    "CALLER",
    "PROCESS",
    "Event",
    "History",
    "LinkFault",
    "Problem",
    "ProcessClock",
    "ProcessNet",
    "SimNet",
    "SimProcess",
    "VirtualLoop",
    "ended",
    "judge",
]
