"""The kill -9 loop (reliability.md T3): start a store or a broker, drive it, kill it anywhere, start it again, judge.

`python tests/proofs/run.py kill_loop --cycles 1000 --flush sync --seed N` is the full form, tests/chaos/test_kill_loop.py
the short one. `campaign` decides what each cycle does and counts; `store_rounds` drives the store alone in a child
process (`child`), `broker_rounds` a real broker (`clients`); `ledger` writes the result down. A round is one data
folder over several cycles, drained and judged at its end.
"""
