"""The source of `evenq backup create`: the brokers of a cluster, through any of them."""

from __future__ import annotations

from collections.abc import AsyncGenerator

from evenq.client.async_admin import AdminClient
from evenq.client.core.admin.backup_views import BackupHead, BackupPart, BackupWish
from evenq.client.faces import AsyncFace
from evenq.runtime.clock import Clock


class BackupSource(AsyncFace, AdminClient):
    """Reader of backups, used as `async with`; arguments as in `evenq.aio.Admin`."""

    @property
    def clock(self) -> Clock:
        return self._context.clock

    async def brokers(self) -> list[str]:
        return sorted(view.name for view in await self._calls.list_brokers())

    def fetch(self, wish: BackupWish) -> AsyncGenerator[BackupHead | BackupPart, None]:
        """Yields one broker's snapshot and log; see `rpc.backup.fetch_backup`."""
        from evenq.client.rpc.backup import fetch_backup

        return fetch_backup(self._calls, wish, clock=self.clock)

    async def close(self) -> None:
        await self._context.let_go(self._calls.net)
