"""The credentials of a client: access key, secret key and, from a token service, a token.

Given as an argument of the clients, or in the environment: EVENQ_ACCESS_KEY with EVENQ_SECRET_KEY (and optionally
EVENQ_SECURITY_TOKEN), or EVENQ_CREDENTIALS, the path of a TOML file with `access_key`, `secret_key` and optionally
`security_token`. Always true: neither secret nor token is in the text of an object.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from evenq.errors import SettingsError
from evenq.runtime.private_files import read_secret

ACCESS_VARIABLE, SECRET_VARIABLE = "EVENQ_ACCESS_KEY", "EVENQ_SECRET_KEY"
TOKEN_VARIABLE = "EVENQ_SECURITY_TOKEN"  # noqa: S105  as above
CREDENTIALS_VARIABLE = "EVENQ_CREDENTIALS"
FILE_BYTES_MAX = 64 << 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    """Keys with which a client signs its calls (wire contract 2.2). Raises SettingsError for an empty one."""

    access_key: str
    """Name of the user; without blanks, `/`, `,` and `=`."""
    secret_key: str = field(repr=False)
    security_token: str = field(default="", repr=False)
    """Sent as `x-mq-session-token`; evenq's own servers do not need one."""

    def __post_init__(self) -> None:
        if not self.access_key or not self.secret_key:
            missing = "access_key" if not self.access_key else "secret_key"
            raise SettingsError(f"{missing} is empty; give both access_key and secret_key, or neither")
        if any(character in self.access_key for character in "/,= \t\r\n") or not self.access_key.isascii():
            raise SettingsError(f"access_key {self.access_key!r} must be ASCII without blanks, '/', ',' and '='")

    @classmethod
    def of_file(cls, path: Path) -> Self:
        """Reads a TOML file. Raises SettingsError."""
        try:
            fields = tomllib.loads(read_secret(path, bytes_max=FILE_BYTES_MAX).decode())
        except OSError as error:
            raise SettingsError(f"the credentials file cannot be read: {error}") from error
        except ValueError:
            # The parser's error may quote the secret.
            raise SettingsError(f'{path} is not TOML; write access_key = "..." and secret_key = "..."') from None
        known = {"access_key", "secret_key", "security_token"}
        if not set(fields) <= known or not all(isinstance(value, str) for value in fields.values()):
            raise SettingsError(f"{path}: write texts for {', '.join(sorted(known))}, and nothing else")
        return cls(
            access_key=fields.get("access_key", ""),
            secret_key=fields.get("secret_key", ""),
            security_token=fields.get("security_token", ""),
        )

    @classmethod
    def of_environment(cls, environ: Mapping[str, str]) -> Self | None:
        """Returns the keys in the environment, or None. Keys win over a file. Raises SettingsError for half a pair."""
        access_key, secret_key = environ.get(ACCESS_VARIABLE, ""), environ.get(SECRET_VARIABLE, "")
        if access_key or secret_key:
            if not access_key or not secret_key:
                given, missing = (
                    (ACCESS_VARIABLE, SECRET_VARIABLE) if access_key else (SECRET_VARIABLE, ACCESS_VARIABLE)
                )
                raise SettingsError(f"{given} is set without {missing}; set both, or neither")
            return cls(access_key=access_key, secret_key=secret_key, security_token=environ.get(TOKEN_VARIABLE, ""))
        path = environ.get(CREDENTIALS_VARIABLE, "")
        return cls.of_file(Path(path)) if path else None
