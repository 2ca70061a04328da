"""The file of contexts: for its owner only, replaced whole, and never quoted in an error."""

from __future__ import annotations

import json
import stat
import threading
from pathlib import Path

import pytest

from evenq.cli.contexts.file import (
    CONTEXTS_MAX,
    ClusterContext,
    Contexts,
    change_contexts,
    check_name,
    contexts_path,
    read_contexts,
    with_context,
    without_context,
)
from evenq.errors import BadRequest, NotFound, SettingsError
from evenq.runtime.lock_file import lock_file

PROD = ClusterContext(endpoint="queue:81", access_key="shop", secret_key="a-secret-key", tls=True)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "config" / "evenq" / "contexts.json"


def added(path: Path, name: str = "prod", context: ClusterContext = PROD) -> Contexts:
    return change_contexts(path, lambda now: with_context(now, name, context, current=True))


def test_the_file_and_its_folder_are_for_their_owner_only(path: Path) -> None:
    path.parent.mkdir(parents=True, mode=0o755)
    added(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert read_contexts(path) == Contexts(contexts={"prod": PROD}, current="prod")


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o644])
def test_a_file_that_others_may_read_is_refused_with_what_to_do(path: Path, mode: int) -> None:
    added(path)
    path.chmod(mode)
    with pytest.raises(SettingsError, match=f"mode {mode:04o}, so other users may read.*chmod 600"):
        read_contexts(path)


def test_a_folder_in_which_others_may_replace_the_file_is_refused(path: Path) -> None:
    added(path)
    path.parent.chmod(0o777)
    with pytest.raises(SettingsError, match=r"other users may replace contexts\.json.*chmod 700"):
        read_contexts(path)


@pytest.mark.parametrize(
    "content",
    [
        "a-secret-key",
        "[]",
        '{"version": 1}',
        '{"version": 1, "current": "", "contexts": {"prod": {"secret_key": "a-secret-key"}}}',
        '{"version": 1, "current": "", "contexts": {"prod": {"endpoint": "x:1", "a-secret-key": 1}}}',
        '{"version": 1, "current": "", "contexts": {"prod": {"endpoint": 1}}}',
    ],
)
def test_a_damaged_file_is_an_error_that_quotes_nothing_of_it(path: Path, content: str) -> None:
    added(path)
    path.write_text(content)
    with pytest.raises(SettingsError) as raised:
        read_contexts(path)
    assert "a-secret-key" not in str(raised.value)
    assert raised.value.__cause__ is None


def test_a_newer_file_asks_for_a_newer_program(path: Path) -> None:
    added(path)
    path.write_text(json.dumps({"version": 2, "current": "", "contexts": {}}))
    with pytest.raises(SettingsError, match="version 2, this program reads 1; update evenq"):
        read_contexts(path)


def test_commands_at_the_same_time_lose_no_change_of_each_other(path: Path) -> None:
    threads = [threading.Thread(target=added, args=(path, f"c{number}")) for number in range(8)]
    for one in threads:
        one.start()
    for one in threads:
        one.join(60)
    assert set(read_contexts(path).contexts) == {f"c{number}" for number in range(8)}


def test_a_change_waits_for_another_process_and_then_names_it(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("evenq.cli.contexts.file.LOCK_WAIT_MS", 0)
    with lock_file(path.with_name("contexts.lock")), pytest.raises(SettingsError, match="run the command again"):
        added(path)


def test_a_failed_change_leaves_the_file_as_it_was(path: Path) -> None:
    added(path)
    with pytest.raises(NotFound):
        change_contexts(path, lambda now: without_context(now, "other"))
    assert read_contexts(path).contexts == {"prod": PROD}
    assert sorted(one.name for one in path.parent.iterdir()) == ["contexts.json", "contexts.lock"]


def test_the_number_of_contexts_is_bounded(path: Path) -> None:
    many = {f"c{number}": ClusterContext(endpoint="x:1") for number in range(CONTEXTS_MAX + 1)}
    with pytest.raises(BadRequest, match="1000 contexts, which is the limit"):
        change_contexts(path, lambda _: Contexts(contexts=many))


def test_removing_the_current_context_leaves_none(path: Path) -> None:
    added(path)
    assert change_contexts(path, lambda now: without_context(now, "prod")) == Contexts()


def test_the_folder_follows_xdg_and_an_empty_home_is_an_error(tmp_path: Path) -> None:
    assert contexts_path({"XDG_CONFIG_HOME": "/x", "HOME": "/h"}) == Path("/x/evenq/contexts.json")
    assert contexts_path({"XDG_CONFIG_HOME": "relative", "HOME": "/h"}) == Path("/h/.config/evenq/contexts.json")
    with pytest.raises(SettingsError, match="set XDG_CONFIG_HOME or HOME"):
        contexts_path({})


@pytest.mark.parametrize("name", ["", "-x", "a b", "a/b", "x" * 65, "ä"])
def test_a_name_that_is_not_valid_says_what_is(name: str) -> None:
    with pytest.raises(BadRequest, match="1 to 64 letters"):
        check_name(name)


def test_half_a_pair_of_keys_is_refused_and_no_text_shows_the_secret() -> None:
    with pytest.raises(SettingsError, match="belong together"):
        ClusterContext(endpoint="x:1", access_key="shop")
    with pytest.raises(SettingsError, match="keep one of them"):
        ClusterContext(endpoint="x:1", access_key="shop", secret_key="s", credentials="/f")
    assert "a-secret-key" not in repr(PROD)
