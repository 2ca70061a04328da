"""The model of replication: the real core of every replica in a small world of faults. See `docs/internals/replication.md`."""
