"""The pages of docs/reference are what `tools/gen_reference.py` writes today, and --check notices when they are not."""

import shutil
from pathlib import Path

import pytest

from tests.unit.tools.conftest import load_tool

gen_reference = load_tool("gen_reference")


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """Pages to play with."""
    return Path(shutil.copytree(gen_reference.PAGES, tmp_path / "reference"))


def test_committed_pages_are_up_to_date(capsys: pytest.CaptureFixture[str]) -> None:
    assert gen_reference.main(["--check"]) == 0, capsys.readouterr().out


def test_the_callers_environment_does_not_show(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = gen_reference.render()
    monkeypatch.setenv("EVENQ_ENDPOINT", "elsewhere:1")
    monkeypatch.setenv("COLUMNS", "40")
    assert gen_reference.render() == plain


@pytest.mark.slow
def test_edited_missing_and_left_over_pages_are_noticed_and_mended(copy: Path) -> None:
    for name, text in (("cli.md", "mine"), ("errors.md", None), ("gone.md", "old")):
        if text is None:
            (copy / name).unlink()
        else:
            (copy / name).write_text(text)
        assert gen_reference.main(["--check", f"--pages={copy}"]) == 1, name
        assert gen_reference.main([f"--pages={copy}"]) == 0
        assert gen_reference.main(["--check", f"--pages={copy}"]) == 0, name


def test_a_setting_that_the_charts_schema_lacks_or_has_left_over_is_noticed_and_mended(tmp_path: Path) -> None:
    schema = tmp_path / "values.schema.json"
    text = gen_reference.SCHEMA.read_text()
    row = '"EVENQ_BROKER_STORE__FLUSH": '
    assert row in text
    for other in (text.replace(row, '"EVENQ_BROKER_STORE__FLUSHES": '), text.replace("-?[0-9]", "[0-9]", 1)):
        schema.write_text(other)
        assert gen_reference.main(["--check", f"--schema={schema}"]) == 1
        assert gen_reference.main([f"--schema={schema}"]) == 0
        assert schema.read_text() == text


def test_an_error_without_advice_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(gen_reference.WHAT_TO_DO, "TopicNotFound")
    with pytest.raises(SystemExit, match="TopicNotFound"):
        list(gen_reference.error_lines())


def test_every_setting_metric_command_and_error_is_on_its_page() -> None:
    pages = gen_reference.render()
    assert "`EVENQ_BROKER_STORE__SEGMENT_BYTES`" in pages["settings.md"]
    assert all(f"## evenq-{program}\n" in pages["settings.md"] for program in gen_reference.programs())
    listed = [metric for metrics in gen_reference.metric_lists().values() for metric in metrics]
    assert all(f"| `{metric.name}` |" in pages["metrics.md"] for metric in listed)
    assert "## evenq group create\n" in pages["cli.md"]
    assert all(f"| `{kind.__name__}` |" in pages["errors.md"] for kind in gen_reference.error_classes())


def test_names_for_queries_split_a_histogram() -> None:
    names = gen_reference.metric_names()
    assert {"rocketmq_rpc_latency_bucket", "rocketmq_messages_in_total"} <= names
    assert "rocketmq_rpc_latency" not in names
