"""`evenq backup create`: streams new records from brokers into the runs of `evenq.store.backup`.

A stream that breaks (a broker's restart, a new leader) is reopened behind the received data, until nothing was received
for `--patience`. Brokers are backed up one after the other; one that fails does not stop the others.
"""

from __future__ import annotations

import argparse
import asyncio
from contextlib import aclosing, suppress
from typing import Final

from evenq.cli.output import Column, Listing, Page, print_page, progress_console
from evenq.cli.store.commands import ProgressBar
from evenq.client.backup_source import BackupSource
from evenq.client.core.admin.backup_views import BackupHead, BackupPart, BackupWish
from evenq.errors import ConnectionFailed, Error, HaNotAvailable, NotFound, RequestTimeout, TooManyRequests
from evenq.runtime.clock import Clock
from evenq.runtime.targets import folder_of
from evenq.store.backup.creating import BackupRun
from evenq.store.backup.manifest import (
    BackupManifest,
    ClusterRun,
    SavedPiece,
    check_cluster,
    read_cluster,
    write_cluster,
)
from evenq.store.backup.remote_target import RemoteTarget
from evenq.store.backup.target import BackupTarget, FolderTarget

AGAIN_MS: Final = 1_000
PASSING: Final = (ConnectionFailed, RequestTimeout, TooManyRequests, HaNotAvailable)
"""Errors of a broker's restart or of a change of the leader."""
_COLUMNS = (
    Column("broker", "broker"),
    Column("number", "restore point", "number"),
    Column("log_start", "log from", "number"),
    Column("until", "to", "number"),
    Column("copied_bytes", "copied bytes", "number"),
    Column("points", "restore points", "number"),
)


def target_of(text: str) -> BackupTarget:
    """Opens the folder or URL of the command line. Raises SettingsError."""
    folder = folder_of(text)
    return RemoteTarget(text) if folder is None else FolderTarget(folder)


def create(options: argparse.Namespace) -> None:
    asyncio.run(_create(options))


async def _create(options: argparse.Namespace) -> None:
    rows: list[BackupManifest] = []
    failures: list[tuple[str, Error]] = []
    with target_of(options.to) as target:
        async with BackupSource(endpoint=options.endpoint, timeout_ms=options.timeout * 1000) as source:
            there = await source.brokers()
            for name in list(dict.fromkeys(options.broker)) or there:
                try:
                    if name not in there:
                        raise NotFound(f"no broker {name} is alive; the live brokers are {', '.join(there)}")
                    rows.append(await _one(options, target, source, name))
                except Error as error:
                    failures.append((name, error))
        if rows and not failures:
            created_ms = max(manifest.points[-1].created_ms for manifest in rows)
            brokers = {manifest.broker_name: manifest.number for manifest in rows}
            write_cluster(target, ClusterRun(cluster=rows[0].cluster, created_ms=created_ms, brokers=brokers))
    if rows or not failures:
        print_page(Page(facts={}, listings=[_listing(rows)]), options.output)
    for name, reason in failures:
        progress_console().print(f"Broker {name} was not backed up: {reason.message}")
    if failures:
        raise failures[-1][1]


def _listing(rows: list[BackupManifest]) -> Listing:
    cells = [
        (one.broker_name, one.number, one.points[-1].log_start, one.end, one.points[-1].copied_bytes, len(one.points))
        for one in rows
    ]
    return Listing(key="backups", columns=_COLUMNS, rows=cells, empty="no broker")


async def _one(options: argparse.Namespace, target: BackupTarget, source: BackupSource, name: str) -> BackupManifest:
    run = BackupRun(target, name)
    try:
        with ProgressBar(name, quiet=options.output.for_programs) as progress:
            if options.check:
                run.check_all(progress)
            copying = _Copying(options, target, source, run, progress)
            await copying.all()
            for piece in run.lost():
                await copying.again(piece)
            return run.finish(keep=options.keep)
    finally:
        run.give_up()


class _Copying:
    """One broker's run over its streams."""

    def __init__(
        self,
        options: argparse.Namespace,
        target: BackupTarget,
        source: BackupSource,
        run: BackupRun,
        progress: ProgressBar,
    ) -> None:
        self._options, self._target, self._source = options, target, source
        self._run, self._progress = run, progress
        self._clock: Clock = source.clock
        known = read_cluster(target)
        self._cluster = known.cluster if known is not None else ""
        self._came_ms = self._clock.monotonic_ms()
        """Monotonic time of the newest data."""

    async def all(self) -> None:
        """Copies all new records. Raises the last error when nothing was received for `--patience`."""
        while True:
            try:
                await self._stream()
                if self._run.complete:
                    return
                raise ConnectionFailed(f"broker {self._run.broker_name} ended its stream early")
            except PASSING as error:
                await self._pause(error)

    async def again(self, piece: SavedPiece) -> None:
        """Copies a lost piece again."""
        wish = BackupWish(
            broker_name=self._run.broker_name,
            cluster=self._cluster,
            start=piece.start,
            compare_from=piece.start,
            end=piece.end,
            bytes_per_second=self._options.max_rate,
        )
        while True:
            data = bytearray()
            try:
                async with aclosing(self._source.fetch(wish)) as parts:
                    async for part in parts:
                        if isinstance(part, BackupPart):
                            data += part.log
                            self._came_ms = self._clock.monotonic_ms()
            except PASSING as error:
                await self._pause(error)
            else:
                self._run.restore_lost(piece, bytes(data))
                return

    async def _stream(self) -> None:
        run, newest = self._run, self._run.compared()
        end = run.end
        wish = BackupWish(
            broker_name=run.broker_name,
            cluster=self._cluster,
            start=end,
            compare_from=newest.start if newest is not None else end,
            compare_crc32c=newest.crc32c if newest is not None else 0,
            bytes_per_second=self._options.max_rate,
        )
        done = total = 0
        async with aclosing(self._source.fetch(wish)) as parts:
            async for part in parts:
                if isinstance(part, BackupHead):
                    total = part.end - part.start + part.snapshot_bytes
                    self._begin(part)
                    continue
                run.snapshot(part.snapshot)
                run.log(part.log)
                done += len(part.snapshot) + len(part.log)
                self._progress(done, total)
                self._came_ms = self._clock.monotonic_ms()

    def _begin(self, head: BackupHead) -> None:
        check_cluster(self._target, head.cluster)
        self._cluster = head.cluster
        self._run.begin(
            cluster=head.cluster,
            store_id=head.store_id,
            segment_bytes=head.segment_bytes,
            epoch=head.epoch,
            log_start=head.log_start,
            start=head.start,
            end=head.end,
            compared=head.compared,
            snapshot_offset=head.snapshot_offset,
            snapshot_bytes=head.snapshot_bytes,
            now_ms=head.now_ms,
        )

    async def _pause(self, error: Error) -> None:
        if self._clock.monotonic_ms() - self._came_ms >= self._options.patience:
            raise error
        self._run.pause()
        await self._clock.sleep_ms(AGAIN_MS)
        with suppress(Error):
            await self._source.brokers()  # finds an access point that answers
