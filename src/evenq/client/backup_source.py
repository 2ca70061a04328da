"""Where `evenq backup create` reads: the brokers of a cluster, through any of them."""

from __future__ import annotations

from collections.abc import AsyncGenerator

from evenq.client.async_admin import AdminClient
from evenq.client.core.admin.backup_views import BackupHead, BackupPart, BackupWish
from evenq.client.faces import AsyncFace
from evenq.runtime.clock import Clock

__all__ = ["BackupSource"]


class BackupSource(AsyncFace, AdminClient):
    """Used as `async with`; settings as of `evenq.aio.Admin`."""

    @property
    def clock(self) -> Clock:
        """The client's."""
        return self._context.clock

    async def brokers(self) -> list[str]:
        """Names of all brokers of the cluster, sorted."""
        return sorted(view.name for view in await self._calls.list_brokers())

    def fetch(self, wish: BackupWish) -> AsyncGenerator[BackupHead | BackupPart, None]:
        """One broker's snapshot and log; see `rpc.backup.fetch_backup`."""
        from evenq.client.rpc.backup import fetch_backup

        return fetch_backup(self._calls, wish)

    async def close(self) -> None:
        """End its connections."""
        await self._context.let_go(self._calls.net)
