"""Targets that backups and tables are written to: a folder, or a URL of fsspec."""

from __future__ import annotations

import errno
import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from evenq.errors import Error, SettingsError, StoreError, StoreFull

SCHEME: Final = "://"
LOCAL: Final = frozenset({"file", "local"})
"""Schemes of fsspec for folders of this machine."""
FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


def folder_of(text: str) -> Path | None:
    """Returns the folder of this machine that a target names, also as a URL; None for another URL. A folder has a lock
    and is synced, and fsspec has neither.
    """
    scheme, found, place = text.partition(SCHEME)
    if not found:
        return Path(text)
    return Path(place) if place and scheme in LOCAL else None


def failed(place: str, error: OSError) -> StoreError:
    """Returns the error for a failed access to a target."""
    reason = error.strerror or str(error)
    if error.errno in FULL:
        return StoreFull(
            f"{place} cannot be written: {reason}; free space and run it again, it continues where it stopped"
        )
    return StoreError(f"{place} cannot be used: {reason}")


@contextmanager
def failing(place: str) -> Iterator[None]:
    """Raises StoreFull or StoreError for any failure at a place: each package of fsspec has classes of its own."""
    try:
        yield
    except Error:
        raise
    except OSError as error:
        raise failed(place, error) from error
    except Exception as error:
        raise StoreError(f"{place} cannot be used: {type(error).__name__}: {error}") from error


def opened(url: str, *, extra: str) -> tuple[Any, str]:
    """Returns the file system of fsspec for a URL, and the path in it. Raises SettingsError without fsspec (which the
    extra installs) or its package for the scheme, StoreError for a store that is away: some packages connect here.
    """
    with failing(url):
        try:
            system, root = importlib.import_module("fsspec.core").url_to_fs(url)
        except ImportError as error:
            raise SettingsError(
                f"{url} needs the package fsspec and what it uses for {url.partition(SCHEME)[0]}:// ({error}): install "
                f"evenq[{extra}] and that, or name a folder"
            ) from error
        except ValueError as error:
            raise SettingsError(f"{url} is not a valid target: {error}") from error
        return system, str(root)
