"""`verify`: sends numbered messages of every kind through a running cluster, and reports the outcome of each.

`evenq verify` is its command. `evenq.testing.checker` checks histories of all operations: it finds more, but must be
notified of every fault. Here the brokers are watched, and may be killed from outside.
"""

from evenq.verify.plan import Kind, Plan
from evenq.verify.running import Moment, Verdict, verify
from evenq.verify.tally import Repeat, Result

__all__ = ["Kind", "Moment", "Plan", "Repeat", "Result", "Verdict", "verify"]
