"""Reading a data folder from the outside: inspect, verify, dump and repair, for `evenq store`.

Everything here reads over the `Disk` seam in pieces of bounded size and never writes; only `repair` does, when it is
it is to repair. It knows the formats of the store, not what the owner keeps in heads and state records.
"""
