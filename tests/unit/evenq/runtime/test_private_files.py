"""What we write is its owner's alone; which files with secrets are taken."""

import logging
import os
import stat
from pathlib import Path

import pytest

from evenq.errors import SettingsError
from evenq.runtime.private_files import make_private, open_private, read_secret, warn_of_readers
from evenq.store.backup.target import FolderTarget, write_small
from evenq.store.io.disk import RealDisk


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


def test_files_and_folders_are_made_for_their_owner_alone(tmp_path):
    folder = tmp_path / "a" / "b"
    make_private(folder)
    make_private(folder)
    with open_private(folder / "file", "wb") as file:
        file.write(b"x")
    assert (mode(tmp_path / "a"), mode(folder), mode(folder / "file")) == (0o700, 0o700, 0o600)


def test_a_folder_that_is_there_keeps_its_mode(tmp_path):
    tmp_path.chmod(0o755)
    make_private(tmp_path)
    assert mode(tmp_path) == 0o755


@pytest.mark.parametrize("given", [0o666, 0o660, 0o602, 0o622])
def test_a_secret_that_others_may_write_is_refused_with_what_to_do(tmp_path, given):
    path = tmp_path / "users.toml"
    path.write_text("x")
    path.chmod(given)
    with pytest.raises(SettingsError, match=f"has mode {given:04o}.* chmod 600"):
        read_secret(path, bytes_max=9)
    link = tmp_path / "link"
    link.symlink_to(path)
    with pytest.raises(SettingsError, match="chmod 600"):
        read_secret(link, bytes_max=9)


@pytest.mark.parametrize("given", [0o400, 0o440, 0o600, 0o640])
def test_a_secret_of_its_owner_and_its_group_is_taken(tmp_path, given, caplog):
    path = tmp_path / f"secret-{given:o}"
    path.write_text("abcdef")
    path.chmod(given)
    assert read_secret(path, bytes_max=4) == b"abcd"
    assert caplog.records == []


def test_a_mounted_secret_of_kubernetes_is_taken_with_one_warning(tmp_path, caplog):
    """It is a link to a link, and its file has mode 0644 unless the volume says otherwise."""
    (tmp_path / "..2026_11_29").mkdir()
    (tmp_path / "..2026_11_29" / "users.toml").write_text("x")
    (tmp_path / "..2026_11_29" / "users.toml").chmod(0o644)
    (tmp_path / "..data").symlink_to("..2026_11_29")
    (tmp_path / "users.toml").symlink_to("..data/users.toml")
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            assert read_secret(tmp_path / "users.toml", bytes_max=9) == b"x"
            warn_of_readers(tmp_path / "users.toml")
    assert [record.message.count("chmod 600") for record in caplog.records] == [1]


def test_what_is_no_file_has_no_mode_to_object_to(tmp_path):
    read, write = os.pipe()
    os.write(write, b"key")
    os.close(write)
    assert read_secret(type(tmp_path)(f"/dev/fd/{read}"), bytes_max=9) == b"key"
    os.close(read)
    warn_of_readers(tmp_path / "missing")


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Every folder and file that is synced from now on."""
    paths: list[Path] = []
    sync = os.fsync
    monkeypatch.setattr(
        os, "fsync", lambda number: (paths.append(Path(f"/proc/self/fd/{number}").readlink()), sync(number))[1]
    )
    return paths


def test_each_folder_that_is_made_is_durable_in_the_one_above_it(tmp_path: Path, synced: list[Path]) -> None:
    make_private(tmp_path / "a" / "b" / "c")
    assert synced == [tmp_path, tmp_path / "a", tmp_path / "a" / "b"]
    make_private(tmp_path / "a" / "b" / "d")
    assert synced[3:] == [tmp_path / "a" / "b"]
    make_private(tmp_path / "a" / "b" / "d")
    assert len(synced) == 4, "one that is there was synced by whoever made it"


def test_a_data_folder_and_a_backups_first_file_are_durable_with_their_folders(
    tmp_path: Path, synced: list[Path]
) -> None:
    RealDisk(tmp_path / "data" / "broker-a")
    assert synced == [tmp_path, tmp_path / "data"]
    write_small(FolderTarget(tmp_path / "backup"), "broker-a/log/1", b"x")
    assert {tmp_path / "backup", tmp_path / "backup" / "broker-a", tmp_path / "backup" / "broker-a" / "log"} <= set(
        synced
    )
