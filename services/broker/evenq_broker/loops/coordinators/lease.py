"""A group record in a Lease object of Kubernetes, one per broker group.

The record is an annotation, `resourceVersion` is its token. Holder and times of the Lease are information only. A Lease
without the annotation, as a chart makes it, holds no record yet. Needs get, update and watch of the Lease by its name,
and create where no chart made it. Worker threads call the API; a watch has a thread of its own, which ends with it. A
watch whose version is too old (410) begins again with the present state.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator
from datetime import UTC, datetime

from evenq.errors import Error
from evenq.runtime.clock import Clock
from evenq.serving.kubernetes.api import Expired, KubernetesApi, Object, WatchStop
from evenq.serving.kubernetes.leases import LeaseObject, micro_time, version_of
from evenq_broker.core.replication.record import NO_LEADER, GroupRecord
from evenq_broker.loops.coordinators.remote import Look, StoredRecord, stored_of

ANNOTATION = "evenq.io/group-record"
WATCH_S = 60
"""Longest time of a watch; then it begins again."""
INT32_MAX = (1 << 31) - 1


class LeaseStore:
    """A RecordStore. Belongs to one loop."""

    def __init__(self, api: KubernetesApi, name: str, *, clock: Clock) -> None:
        self._object = LeaseObject(api, name)
        self._clock = clock

    @property
    def name(self) -> str:
        """See RecordStore."""
        return f"Lease {self._object.name}"

    @property
    def endpoints(self) -> int:
        """See RecordStore."""
        return 1

    async def read(self) -> Look:
        """See RecordStore."""
        lease = await asyncio.to_thread(self._object.read)
        return Look(None if lease is None else self._stored(lease), "" if lease is None else version_of(lease))

    async def write(self, record: GroupRecord, text: str, token: str) -> str | None:
        """See RecordStore."""
        return await asyncio.to_thread(self._write, record, text, token)

    async def changes(self, since: str) -> AsyncGenerator[StoredRecord | None, None]:
        """See RecordStore."""
        for place in (since, ""):
            news, stop = _News(asyncio.get_running_loop()), WatchStop()
            # A daemon thread: the process does not wait for a read that urllib3 cannot end.
            threading.Thread(
                target=self._follow, args=(place, stop, news), name=f"watch {self.name}", daemon=True
            ).start()
            try:
                while (lease := await news.next()) is not None:
                    yield self._stored(lease)
            except Expired:
                continue
            finally:
                stop.set()
            return

    # --- in threads

    def _write(self, record: GroupRecord, text: str, token: str) -> str | None:
        version = token
        if not token:
            there = self._object.read()
            if there is not None and ANNOTATION in _annotations(there):
                return None
            version = "" if there is None else version_of(there)
        written = self._object.write(self._spec(record), version, annotations={ANNOTATION: text})
        return None if written is None else version_of(written)

    def _spec(self, record: GroupRecord) -> Object:
        spec: Object = {
            "renewTime": micro_time(datetime.fromtimestamp(self._clock.now_ms() / 1000, UTC)),
            "leaseTransitions": min(record.epoch, INT32_MAX),
        }
        if record.leader != NO_LEADER:
            spec["holderIdentity"] = f"broker {record.leader}"
        return spec

    def _follow(self, since: str, stop: WatchStop, news: _News) -> None:
        try:
            for kind, lease in self._object.watched(since, limit_s=WATCH_S, stop=stop):
                if stop.is_set:
                    return
                if kind == "DELETED":
                    break
                if kind != "BOOKMARK":
                    news.tell(lease)
        except Error as error:
            news.end(error)
        else:
            news.end(None)

    def _stored(self, lease: Object) -> StoredRecord | None:
        text = _annotations(lease).get(ANNOTATION)
        return None if text is None else stored_of(str(text), version_of(lease), self.name)


class _News:
    """Channel from the thread of a watch to the loop: the newest state, and the end."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._changed = asyncio.Event()
        self._newest: Object | None = None
        self._over = False
        self._error: Error | None = None

    def tell(self, lease: Object) -> None:
        """Passes a state on. Called in the thread."""
        self._hand_over(lease, False, None)

    def end(self, error: Error | None) -> None:
        """Ends the channel. Called in the thread."""
        self._hand_over(None, True, error)

    async def next(self) -> Object | None:
        """Returns the newest state that was not returned yet; None: the watch ended. Raises the error that ended it."""
        await self._changed.wait()
        lease, self._newest = self._newest, None
        if not self._over:
            self._changed.clear()
        if lease is None and self._error is not None:
            raise self._error
        return lease

    def _hand_over(self, lease: Object | None, over: bool, error: Error | None) -> None:
        try:
            self._loop.call_soon_threadsafe(self._take, lease, over, error)
        except RuntimeError:  # the loop is closed: the process ends
            return

    def _take(self, lease: Object | None, over: bool, error: Error | None) -> None:
        self._newest = lease or self._newest
        self._over, self._error = over or self._over, error or self._error
        self._changed.set()


def _annotations(lease: Object) -> Object:
    annotations = (lease.get("metadata") or {}).get("annotations")
    return annotations if isinstance(annotations, dict) else {}
