"""The file of contexts: `$XDG_CONFIG_HOME/evenq/contexts.json`, otherwise `~/.config/evenq/contexts.json`.

    {"version": 1, "current": "prod", "contexts": {"prod": {"endpoint": "queue.example.com:8081", "tls": true}}}

It may contain secret keys, so it is for its owner only: mode 0600 in a folder of mode 0700. A file that other users may
read is refused. It is replaced whole by a rename, under a lock, so two commands lose no change of each other and a
reader never gets half a file.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from evenq.errors import BadRequest, NotFound, SettingsError
from evenq.runtime.clock import SystemClock
from evenq.runtime.lock_file import LockHeld, run_locked
from evenq.runtime.private_files import FOLDER_MODE, make_private, read_private, replace_file

VERSION = 1
CONTEXTS_MAX = 1_000
BYTES_MAX = 4 << 20
LOCK_WAIT_MS = 5_000
TEXT_MAX = 4_096
"""Longest text of a context, in characters."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}\Z")


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterContext:
    """The values of one context. Empty and False: not set. Paths are absolute."""

    endpoint: str
    access_key: str = ""
    secret_key: str = field(default="", repr=False)
    credentials: str = ""
    """Path of a file with keys, instead of keys in the context."""
    tls: bool = False
    tls_ca: str = ""
    tls_certificate: str = ""
    tls_key: str = ""
    tls_server_name: str = ""
    tls_insecure: bool = False
    namespace: str = ""
    """Prefix of names of topics and groups."""

    def __post_init__(self) -> None:
        for item in fields(self):
            value = getattr(self, item.name)
            if not isinstance(value, bool if item.type == "bool" else str):
                raise SettingsError(f"{item.name} is not a {'switch' if item.type == 'bool' else 'text'}")
            if isinstance(value, str) and len(value) > TEXT_MAX:
                raise SettingsError(f"{item.name} has {len(value)} characters, the limit is {TEXT_MAX}")
        if not self.endpoint:
            raise SettingsError("endpoint is empty; give HOST:PORT of a broker")
        if bool(self.access_key) != bool(self.secret_key):
            raise SettingsError("access_key and secret_key belong together; give both, or neither")
        if self.access_key and self.credentials:
            raise SettingsError("keys and a credentials file are both given; keep one of them")

    def values(self) -> dict[str, str | bool]:
        """Returns the values that are set."""
        return {key: value for key, value in asdict(self).items() if value}


@dataclass(frozen=True, slots=True, kw_only=True)
class Contexts:
    """The content of the file."""

    contexts: Mapping[str, ClusterContext] = field(default_factory=dict)
    current: str = ""
    """Name of the context that commands use; empty: none."""

    def get(self, name: str) -> ClusterContext:
        """Returns a context. Raises NotFound, which names the known ones."""
        if name not in self.contexts:
            known = ", ".join(sorted(self.contexts)) or "none"
            raise NotFound(
                f"there is no context {name} (known: {known}); `evenq context list` shows them, `evenq context add "
                f"{name} --endpoint HOST:PORT` adds it"
            )
        return self.contexts[name]


def contexts_path(environ: Mapping[str, str]) -> Path:
    """Returns the path of the file. Raises SettingsError where neither variable nor home folder is known."""
    chosen = environ.get("XDG_CONFIG_HOME", "")
    if chosen.startswith("/"):  # the XDG specification: a relative path is ignored
        return Path(chosen, "evenq", "contexts.json")
    home = environ.get("HOME", "")
    if not home.startswith("/"):
        raise SettingsError("the folder of contexts is not known; set XDG_CONFIG_HOME or HOME to an absolute path")
    return Path(home, ".config", "evenq", "contexts.json")


def read_contexts(path: Path) -> Contexts:
    """Reads the file; one that does not exist has no contexts. Raises SettingsError, which never contains a secret."""
    try:
        content = read_private(path, bytes_max=BYTES_MAX + 1)
    except (FileNotFoundError, NotADirectoryError):
        return Contexts()
    except OSError as error:
        raise SettingsError(f"the contexts in {path} cannot be read: {error.strerror}") from error
    if len(content) > BYTES_MAX:
        raise SettingsError(f"{path} is larger than {BYTES_MAX} bytes; remove it and add the contexts again")
    try:
        return _parse(json.loads(content))
    except (ValueError, TypeError, KeyError, AttributeError):
        # The text of such an error may quote a key.
        raise SettingsError(f"{path} is not a file of contexts; remove it and add the contexts again") from None


def change_contexts(path: Path, change: Callable[[Contexts], Contexts]) -> Contexts:
    """Replaces the content by that of `change`, under a lock, and returns it. Raises SettingsError."""
    import asyncio

    def replaced() -> Contexts:
        now = change(read_contexts(path))
        if len(now.contexts) > CONTEXTS_MAX:
            raise BadRequest(f"there are {CONTEXTS_MAX} contexts, which is the limit; remove one first")
        replace_file(path, json.dumps(_fields(now), indent=1) + "\n")
        return now

    with _explained(path):
        make_private(path.parent)
        path.parent.chmod(FOLDER_MODE)  # an older folder may be open to others
        lock = path.with_name("contexts.lock")
        return asyncio.run(run_locked(lock, replaced, clock=SystemClock(), wait_ms=LOCK_WAIT_MS))


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    try:
        yield
    except LockHeld as held:
        raise SettingsError(f"{held} changes the contexts in {path.parent}; run the command again") from held
    except OSError as error:
        raise SettingsError(
            f"the contexts cannot be written to {path.parent}: {error.strerror}; set XDG_CONFIG_HOME to a folder of "
            "yours"
        ) from error


def check_name(name: str) -> str:
    """Returns a valid name of a context. Raises BadRequest."""
    if not _NAME.match(name):
        raise BadRequest(
            f"{name!r} is not a name of a context; give 1 to 64 letters, digits, '.', '_' and '-', a letter or digit "
            "first"
        )
    return name


def with_context(contexts: Contexts, name: str, context: ClusterContext, *, current: bool) -> Contexts:
    """Returns the contexts with one more, or another one under this name."""
    return Contexts(contexts={**contexts.contexts, name: context}, current=name if current else contexts.current)


def without_context(contexts: Contexts, name: str) -> Contexts:
    """Returns the contexts without this one. Raises NotFound."""
    contexts.get(name)
    rest = {key: value for key, value in contexts.contexts.items() if key != name}
    return replace(contexts, contexts=rest, current="" if contexts.current == name else contexts.current)


def _parse(content: Any) -> Contexts:
    if content["version"] != VERSION:
        raise SettingsError(
            f"the file of contexts has version {int(content['version'])}, this program reads {VERSION}; update evenq"
        )
    contexts = {check_name(str(name)): ClusterContext(**values) for name, values in content["contexts"].items()}
    return Contexts(contexts=contexts, current=str(content["current"]))


def _fields(contexts: Contexts) -> dict[str, Any]:
    named = {name: one.values() for name, one in sorted(contexts.contexts.items())}
    return {"version": VERSION, "current": contexts.current, "contexts": named}


def environment_contexts() -> Contexts:
    """Returns the contexts of this user. Raises SettingsError; without a home folder there are none."""
    try:
        path = contexts_path(os.environ)
    except SettingsError:
        return Contexts()
    return read_contexts(path)
