"""Signatures of calls (wire contract 2.2): `MQv2-HMAC-SHA1 Credential=…, SignedHeaders=x-mq-date-time, Signature=…`.

The signature is HMAC-SHA1 with the secret key over the exact bytes of the header `x-mq-date-time`; nothing else of a
call is signed. Servers verify here; the SDK and servers that call each other sign here. Always true: a secret never
appears in the text of an object, and signatures are compared in constant time.
"""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import NoReturn

ALGORITHM = "MQv2-HMAC-SHA1"
AUTHORIZATION = "authorization"
DATE_TIME = "x-mq-date-time"
SESSION_TOKEN = "x-mq-session-token"  # noqa: S105  the name of a header
HEADER_MAX = 1_024  # most characters of an `authorization` header that is parsed
DATE_MAX = 64
"""Most characters of `x-mq-date-time`, so that unauthenticated callers cannot cause long hashing."""
_HEX_DIGITS = 40


class Secret:
    """A secret key. Its text is `***`; only `reveal` returns the key, and pickling is not possible."""

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        self._value = value

    def reveal(self) -> bytes:
        """Returns the key, UTF-8."""
        return self._value.encode()

    def __repr__(self) -> str:
        return "***"

    def __format__(self, _: str) -> str:
        return "***"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a secret is not pickled")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and hmac.compare_digest(self.reveal(), other.reveal())

    __hash__ = None  # type: ignore[assignment]  # not a key of dicts

    def __bool__(self) -> bool:
        return bool(self._value)


@dataclass(frozen=True, slots=True)
class AuthorizationHeader:
    """Parsed content of an `authorization` header."""

    user: str
    """The credential up to its first `/`; Go appends `//Rocketmq`, C++ `/region/RocketMQ`."""
    signature: str
    """As received: upper case from Java, C++, C# and Node.js, lower case from Go, Python and Rust."""


def sign(secret: Secret, date: str) -> str:
    """Returns the signature of a date-time header, 40 upper-case hex digits."""
    return hmac.new(secret.reveal(), date.encode(), hashlib.sha1).hexdigest().upper()


def authorization(user: str, secret: Secret, date: str) -> str:
    return f"{ALGORITHM} Credential={user}, SignedHeaders={DATE_TIME}, Signature={sign(secret, date)}"


def read_claim(header: str) -> AuthorizationHeader | None:
    """Parses a header, with its parts in any order; None if it does not have this form."""
    algorithm, _, rest = header.partition(" ")
    if algorithm != ALGORITHM or len(header) > HEADER_MAX:
        return None
    parts: dict[str, str] = {}
    for part in rest.split(","):
        name, _, value = part.strip().partition("=")
        # A part given twice could be read in two ways: guard and log might see different users.
        if name in parts:
            return None
        parts[name] = value
    user = parts.get("Credential", "").partition("/")[0]
    signature = parts.get("Signature", "")
    if not user or len(signature) != _HEX_DIGITS or parts.get("SignedHeaders", DATE_TIME) != DATE_TIME:
        return None
    return AuthorizationHeader(user, signature)


def fits(claim: AuthorizationHeader, secret: Secret, date: str) -> bool:
    """Returns whether the signature is right, in constant time; hex digits may have either case."""
    return hmac.compare_digest(claim.signature.upper().encode(), sign(secret, date).encode())


def date_time(now_ms: int) -> str:
    """Returns the header of a time, `yyyyMMddTHHmmssZ`, in UTC as its Z states."""
    return datetime.fromtimestamp(now_ms // 1000, UTC).strftime("%Y%m%dT%H%M%SZ")


def moment_ms(date: str) -> int | None:
    """Returns the time in a header, ms since the epoch, read as UTC; None for an unknown form.

    Java, Go, Python and C# write local time before the Z; Rust writes RFC 3339.
    """
    try:
        if len(date) == 16 and date[8] == "T" and date[-1] == "Z":
            moment = datetime.strptime(date[:-1], "%Y%m%dT%H%M%S").replace(tzinfo=UTC)
        else:
            moment = datetime.fromisoformat(date)
            moment = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
        return int(moment.timestamp() * 1000)
    except (ValueError, OverflowError):
        return None
