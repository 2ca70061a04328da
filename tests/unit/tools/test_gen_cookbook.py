"""`tools/gen_cookbook.py` makes a section of a program: its docstring is the text, its output is a block."""

from pathlib import Path

import pytest

from tests.unit.tools.conftest import load_tool

gen_cookbook = load_tool("gen_cookbook")
PROGRAM = (
    '"""A heading.\n\nSome text, see docs/guides/transactions.md.\n\nPrints:\n\n    a\n      b\n"""\n\nprint("a")\n'
)


def test_a_program_becomes_a_section(tmp_path: Path) -> None:
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    recipe = gen_cookbook.recipe(path)
    assert (recipe.title, recipe.prints, recipe.code) == ("A heading", "a\n  b", 'print("a")')
    page = gen_cookbook.page([recipe])
    for part in (
        "## A heading\n\nSome text, see [docs/guides/transactions.md](guides/transactions.md).",
        '```python\nprint("a")\n```',
        "```\npython examples/cookbook/program.py\n```",
        "```text\na\n  b\n```",
    ):
        assert part in page


def test_a_yaml_file_has_its_text_in_the_first_comment(tmp_path: Path) -> None:
    path = tmp_path / "deployment.yaml"
    path.write_text("# A heading.\n#\n# Some text.\nkind: Pod # no heading\n")
    recipe = gen_cookbook.recipe(path)
    assert (recipe.title, recipe.text, recipe.code) == ("A heading", "Some text.", "kind: Pod # no heading")


def test_a_program_without_a_text_or_outside_the_order_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gen_cookbook, "ROOT", tmp_path)
    monkeypatch.setattr(gen_cookbook, "FOLDER", tmp_path)
    (tmp_path / "program.py").write_text('"""Only a heading."""\n')
    with pytest.raises(SystemExit, match=r"program\.py: its text needs a heading"):
        gen_cookbook.recipe(tmp_path / "program.py")
    with pytest.raises(SystemExit, match=r"ORDER .* differ: .*program\.py"):
        gen_cookbook.recipes()


def test_an_edited_page_is_noticed_and_mended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert gen_cookbook.main(["--check"]) == 0, capsys.readouterr().out
    monkeypatch.setattr(gen_cookbook, "PAGE", tmp_path / "cookbook.md")
    assert gen_cookbook.main(["--check"]) == 1
    assert "run: python tools/gen_cookbook.py" in capsys.readouterr().out
    assert gen_cookbook.main([]) == 0
    assert gen_cookbook.main(["--check"]) == 0
