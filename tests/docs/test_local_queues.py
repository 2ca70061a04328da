"""The Python of docs/guides/local_queues.md runs, without any server."""

from __future__ import annotations

PAGE = "docs/guides/local_queues.md"


def test_every_python_block_of_the_guide_runs_without_a_server(blocks, start):
    programs = blocks(PAGE, "python")
    assert len(programs) >= 3
    for program in programs:
        process = start(program.text)
        output, _ = process.communicate(timeout=60)
        assert process.returncode == 0, f"{program}\n{output}"
