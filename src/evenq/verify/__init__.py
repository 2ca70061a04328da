"""`verify`: numbered messages of every kind through a running cluster, and what became of each.

`evenq verify` is its face. For histories of all operations see `evenq.testing.checker`: it finds more, and needs to be
notified of every fault; here the brokers are watched, and may be killed from outside meanwhile.
"""

from evenq.verify.plan import Kind, Plan
from evenq.verify.running import Moment, Verdict, verify
from evenq.verify.tally import Repeat, Result

__all__ = ["Kind", "Moment", "Plan", "Repeat", "Result", "Verdict", "verify"]
