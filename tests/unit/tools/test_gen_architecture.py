"""The picture of the rooms is what the code says today, and no arrow runs through a room that it does not name."""

import re

import pytest

from tests.unit.tools.conftest import load_tool

tool = load_tool("gen_architecture")

ROWS = [["top"], ["left", "right"], ["bottom"]]
ARROW = re.compile(r'<path d="M(\d+) (\d+)(?:V(\d+)H(\d+))?V(\d+)" fill="none"')
BOX = re.compile(r'<rect x="(\d+)" y="(\d+)" width="(\d+)" height="(\d+)"')


def test_the_picture_is_up_to_date():
    assert tool.main(["--check"]) == 0


def test_a_picture_that_is_out_of_date_is_told(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(tool, "PICTURE", tool.ROOT / "docs" / "pictures" / "no_such.svg")
    assert tool.main(["--check"]) == 1
    assert "python tools/gen_architecture.py" in capsys.readouterr().err


def test_no_arrow_runs_through_a_box():
    picture = tool.picture()
    boxes = [tuple(map(int, found)) for found in BOX.findall(picture)]
    arrows = ARROW.findall(picture)
    assert len(boxes) == len(tool.WHAT)
    assert len(arrows) > 20
    for x1, y1, turn, x2, y2 in arrows:
        bends = [(x1, y1, x1, turn), (x1, turn, x2, turn), (x2, turn, x2, y2)] if turn else [(x1, y1, x1, y2)]
        for line in bends:
            ax, ay, bx, by = map(int, line)
            for x, y, width, height in boxes:
                inside_x = max(min(ax, bx), x) < min(max(ax, bx), x + width) or (ax == bx and x <= ax <= x + width)
                inside_y = max(min(ay, by), y) < min(max(ay, by), y + height) or (ay == by and y <= ay <= y + height)
                assert not (inside_x and inside_y), (line, (x, y))
        assert any(x <= int(x1) <= x + width and y + height == int(y1) for x, y, width, height in boxes)
        end = int(x2 or x1)
        assert any(x <= end <= x + width and y == int(y2) for x, y, width, height in boxes)


def test_what_follows_from_other_arrows_is_left_out():
    edges = {"top": {"left", "bottom"}, "left": {"bottom"}, "right": set(), "bottom": set()}
    assert tool.reduced(edges) == {"top": {"left"}, "left": {"bottom"}, "right": set(), "bottom": set()}


def test_an_import_upwards_is_an_exception_and_not_drawn():
    edges = {"top": {"left"}, "left": {"bottom"}, "right": set(), "bottom": {"top"}}
    assert tool.downward(ROWS, edges) == edges | {"bottom": set()}


def test_an_import_becomes_an_arrow(tmp_path):
    for name, text in (
        ("top", "from left import thing\n"),
        ("left", "import bottom.deep\n"),
        ("bottom", ""),
        ("right", ""),
    ):
        (tmp_path / "src" / name).mkdir(parents=True)
        (tmp_path / "src" / name / "__init__.py").write_text(text)
    result = tool.imports([room for row in ROWS for room in row], tmp_path)
    assert result == {"top": {"left"}, "left": {"bottom"}, "right": set(), "bottom": set()}


def test_a_room_that_nobody_described_is_refused():
    with pytest.raises(SystemExit, match="add these packages to WHAT and COLUMNS: top"):
        tool.drawn(ROWS, {room: set() for row in ROWS for room in row})
