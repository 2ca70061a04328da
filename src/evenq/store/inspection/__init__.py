"""Tools of `evenq store` for a data folder: inspect, verify, dump and repair.

Everything reads through the `Disk` interface in pieces of bounded size. Only `repair` writes, when its plan is applied.
The tools use the formats of the store, but not the content of heads and state records.
"""
