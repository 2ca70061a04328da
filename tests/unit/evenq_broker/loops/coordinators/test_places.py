"""The setting `replication.record`: which coordinator it names, and what is said of one that names none."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from evenq_broker.core.replication.record import Pair, first_record
from evenq_broker.loops.coordinators.coordinator import Coordinator, RecordWentBack
from evenq_broker.loops.coordinators.file import FileCoordinator
from evenq_broker.loops.coordinators.places import ETCD, forget_record, record_place
from evenq_broker.loops.coordinators.remote import RemoteCoordinator
from evenq_broker.settings import ReplicationSettings

from evenq.errors import SettingsError
from evenq.runtime.clock import FakeClock


def place_of(record: str, folder: Path, **more: object) -> Coordinator:
    settings = ReplicationSettings.model_validate({"record": record, **more})
    return record_place(settings, folder, clock=FakeClock(), rng=random.Random(1)).coordinator


@pytest.mark.parametrize(
    ("record", "kind"),
    [
        ("file:/var/lib/evenq/broker-a.group", FileCoordinator),
        ("lease:broker-a", RemoteCoordinator),
        ("etcd:127.0.0.1:2379/evenq/broker-a", RemoteCoordinator),
        ("etcd:http://127.0.0.1:2379,https://etcd2:2379/evenq/broker-a", RemoteCoordinator),
    ],
)
def test_each_kind_of_place(tmp_path: Path, record: str, kind: type) -> None:
    assert isinstance(place_of(record, tmp_path), kind)


def test_endpoints_and_key_of_etcd_are_told_apart() -> None:
    parts = ETCD.fullmatch("http://a:1,b:2/evenq/groups/broker-a")
    assert parts is not None
    assert (parts["endpoints"], parts["key"]) == ("http://a:1,b:2", "evenq/groups/broker-a")


@pytest.mark.parametrize("record", ["file:", "etcd:127.0.0.1:2379", "etcd:127.0.0.1:2379/", "etcd:/key", "lease:"])
def test_a_place_that_is_none_is_refused(tmp_path: Path, record: str) -> None:
    with pytest.raises(SettingsError, match=r"replication\.record"):
        place_of(record, tmp_path)


def test_a_password_comes_from_its_file(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"etcd_password.*cannot be read"):
        place_of("etcd:127.0.0.1:2379/k", tmp_path, etcd_user="evenq", etcd_password=str(tmp_path / "none"))
    (tmp_path / "password").write_text("secret\n")
    place_of("etcd:127.0.0.1:2379/k", tmp_path, etcd_user="evenq", etcd_password=str(tmp_path / "password"))


async def test_what_was_seen_of_another_groups_record_is_forgotten_with_it(tmp_path: Path) -> None:
    others = first_record(Pair(7, "a" * 32), members=(7,), min_isr=1, epoch=3)
    first = place_of(f"file:{tmp_path / 'first'}", tmp_path / "data")
    assert await first.compare_and_set(None, others) is not None
    with pytest.raises(RecordWentBack, match="has seen epoch 3"):
        await place_of(f"file:{tmp_path / 'second'}", tmp_path / "data").read()
    forget_record(tmp_path / "data")
    assert await place_of(f"file:{tmp_path / 'second'}", tmp_path / "data").read() is None
