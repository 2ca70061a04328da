"""Which accelerator a process uses, and what forbids a server to start."""

import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType

import pytest

from evenq.errors import SettingsError
from evenq.runtime.accelerator import MODULE, PARTS, VARIABLE, Accelerator, accelerator
from evenq.runtime.version import __version__

ROOT = Path(__file__).resolve().parents[4]


@pytest.fixture(autouse=True)
def _chosen_again() -> Iterator[None]:
    accelerator.cache_clear()
    yield
    accelerator.cache_clear()


def chosen(
    monkeypatch: pytest.MonkeyPatch, wanted: str | None, installed: str | None, parts: Sequence[str] = PARTS
) -> Accelerator:
    """The choice with this variable and a module of this version with these parts. None: there is none."""
    if wanted is None:
        monkeypatch.delenv(VARIABLE, raising=False)
    else:
        monkeypatch.setenv(VARIABLE, wanted)
    module = None
    if installed is not None:
        module = ModuleType(MODULE)
        module.__version__ = installed  # type: ignore[attr-defined]
        for part in parts:
            setattr(module, part, object())
    monkeypatch.setitem(sys.modules, MODULE, module)  # type: ignore[arg-type]  # None: importing it fails
    return accelerator()


@pytest.mark.parametrize("wanted", [None, "", "auto", "on"])
def test_the_module_of_this_version_is_used(monkeypatch: pytest.MonkeyPatch, wanted: str | None) -> None:
    found = chosen(monkeypatch, wanted, __version__)
    found.must_be_right()
    assert found.module is sys.modules[MODULE]
    assert (found.state, found.version, found.named("1.2")) == (__version__, __version__, "1.2 (native)")


def test_an_older_build_of_this_version_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    found = chosen(monkeypatch, None, __version__, parts=PARTS[:1])
    assert (found.module, found.version) == (None, "")
    assert found.state == f"an older build of version {__version__}, without pack_messages"


@pytest.mark.parametrize("installed", [None, __version__, "0.0.1"])
def test_off_uses_plain_python(monkeypatch: pytest.MonkeyPatch, installed: str | None) -> None:
    found = chosen(monkeypatch, "off", installed)
    found.must_be_right()
    assert (found.module, found.version, found.named("1.2")) == (None, "", "1.2")
    assert found.state == "off (EVENQ_NATIVE=off)"


@pytest.mark.parametrize(
    ("installed", "state"), [(None, "not installed"), ("0.0.1", f"of version 0.0.1, and this is evenq {__version__}")]
)
def test_a_missing_module_or_one_of_another_version_is_not_used_and_on_forbids_the_start(
    monkeypatch: pytest.MonkeyPatch, installed: str | None, state: str
) -> None:
    found = chosen(monkeypatch, "auto", installed)
    found.must_be_right()
    assert (found.module, found.state) == (None, state)
    accelerator.cache_clear()
    found = chosen(monkeypatch, "on", installed)
    assert found.module is None
    with pytest.raises(SettingsError, match=r"EVENQ_NATIVE=on, but evenq_native is .*make native"):
        found.must_be_right()


def test_an_unknown_value_forbids_the_start_and_names_those_that_are_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    found = chosen(monkeypatch, "yes", __version__)
    assert found.module is None
    with pytest.raises(SettingsError, match="EVENQ_NATIVE is 'yes'; it must be on, off or auto"):
        found.must_be_right()


def test_a_module_that_cannot_be_loaded_is_not_used_and_the_reason_is_said(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / f"{MODULE}.py").write_text("raise ImportError('wrong ELF class')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, MODULE, raising=False)
    monkeypatch.setenv(VARIABLE, "auto")
    assert accelerator().state == "not usable here (wrong ELF class)"


def test_the_module_that_is_built_here_is_of_this_version() -> None:
    text = (ROOT / "native" / "Cargo.toml").read_text()
    found = re.search(r'^version = "(.+?)"', text, re.MULTILINE)
    assert found is not None
    assert found[1] == __version__
