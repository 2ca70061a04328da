"""Replication of a broker group: the protocol alone, as events in and actions out.

`Replica` is the state machine; `docs/internals/replication.md` has its states, its rules, and where each is proved.
"""
