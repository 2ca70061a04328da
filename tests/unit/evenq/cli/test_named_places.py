"""A place that is empty is not the folder in which the command runs."""

from pathlib import Path

import pytest

from evenq.cli.__main__ import main


@pytest.mark.parametrize(
    ("words", "option"),
    [
        (["backup", "create", "--to", ""], "--to"),
        (["backup", "list", ""], "TARGET"),
        (["backup", "verify", " "], "TARGET"),
        (["backup", "restore", "b", "--data", ""], "--data"),
        (["store", "repair", "", "--apply"], "DIR"),
        (["up", "--data", ""], "--data"),
    ],
)
def test_an_empty_place_is_refused_and_nothing_is_written(
    words: list[str], option: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 2
    assert f"{option}: it is empty; name a place" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
