"""What evenq is proven with, and what no user needs: disks that fail, networks that misbehave, campaigns and planted faults.

`storage` and `kill_loop` are campaigns (`make storage`, `make kill-loop`), `sim` the world in virtual time for `tests/sim`,
`planting` and `good_history` the proof that the checker finds what it looks for; `fault_disk`, `fake_registry` and
`loop_net` stand in for a disk, a nameserver and gRPC; `quick_spark` has the defaults of the Sparks that tests start, and
`spark_classes` makes what their JVMs start from.
"""
