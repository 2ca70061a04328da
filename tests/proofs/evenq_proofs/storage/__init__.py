"""Proofs of the store: record a workload once, cut it everywhere, damage what is left, and judge each start after it.

`machine` and `trace_disk` are the disk, `workload` and `history` what was asked and answered, `judge` the promise,
`crashes`, `damage` and `faults` the ways to break it, `campaign` the jobs; `python tests/proofs/run.py storage` runs all.
"""
