"""The console of a release, as a user's browser sees it."""

from __future__ import annotations

import re
from types import TracebackType
from typing import Self

import httpx


class ConsoleBrowser:
    """Keeps cookies and follows redirects, like a browser. A context manager."""

    def __init__(self, url: str) -> None:
        self._client = httpx.Client(base_url=url, follow_redirects=True, timeout=30)

    def page(self, path: str) -> str:
        """Returns the text of a page."""
        return self._client.get(path).raise_for_status().text

    def sign_in(self, access_key: str, secret_key: str) -> bool:
        """Returns whether the console accepts the keys."""
        token = re.search(r'name="token" value="([^"]+)"', self.page("/login"))
        assert token is not None
        form = {"token": token[1], "access_key": access_key, "secret_key": secret_key, "next": ""}
        return self._client.post("/login", data=form).status_code == httpx.codes.OK

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self._client.close()
