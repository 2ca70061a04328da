"""The guide of tables, run line by line."""

from __future__ import annotations

PAGE = "docs/guides/tables.md"
COUNT = "1000"
"""Messages that the page sends."""


def test_every_command_and_program_of_the_page_runs(blocks, endpoint, shell, start):
    first, *others = blocks(PAGE, "")
    for line in first.commands():
        shell(line)
    programs = blocks(PAGE, "python")
    assert len(programs) == 4
    for program in programs:
        process = start(program.text)
        output, _ = process.communicate("\n", timeout=120)
        assert process.returncode == 0, f"{program}\n{output}"
        assert COUNT in output, output
    outputs = [shell(line) for block in others for line in block.commands()]
    assert len(outputs) == 7
    assert "1,000" in outputs[0]
    assert outputs[1].count("\n") == 4
    assert outputs[2] == '[{"n": 1000}]\n'
    assert outputs[4].startswith("clean: ")
    assert "1,000 rows" in outputs[4]
