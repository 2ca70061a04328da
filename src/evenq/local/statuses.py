"""Statuses of the engines by the names of the reference: putting (LQ-21), reading a record (LQ-19), getting (LQ-58 to
LQ-67).

Programs get errors of `evenq.errors` and lists of messages; the statuses are for the level below.
"""

from enum import StrEnum


class PutStatus(StrEnum):
    """Outcome of a batch (LQ-10, LQ-21)."""

    PUT_OK = "PUT_OK"
    CREATE_MAPEDFILE_FAILED = "CREATE_MAPEDFILE_FAILED"
    """No new file could be created; the spelling is the reference's."""
    MESSAGE_ILLEGAL = "MESSAGE_ILLEGAL"
    """A message or its properties exceed their limit; nothing of the batch is stored."""
    UNKNOWN_ERROR = "UNKNOWN_ERROR"


class AppendStatus(StrEnum):
    """Outcome of an append to one file (LQ-21, LQ-23)."""

    PUT_OK = "PUT_OK"
    END_OF_FILE = "END_OF_FILE"
    """The next message does not fit into the rest of the file."""
    MESSAGE_SIZE_EXCEEDED = "MESSAGE_SIZE_EXCEEDED"
    PROPERTIES_SIZE_EXCEEDED = "PROPERTIES_SIZE_EXCEEDED"
    UNKNOWN_ERROR = "UNKNOWN_ERROR"


class ReadStatus(StrEnum):
    """Content at a position of a file (LQ-19)."""

    RECORD = "RECORD"
    END = "END"
    """Filler, or too little space for a record: the file's data ends here."""
    EMPTY = "EMPTY"
    """Nothing was ever written here."""
    CUT = "CUT"
    """A record begins here and continues after the bytes that exist."""
    BAD_MAGIC = "BAD_MAGIC"
    BAD_CHECKSUM = "BAD_CHECKSUM"
    """The checksum, a length, or the offset in the record does not match."""


class GetStatus(StrEnum):
    """Outcome of a read of one queue; the next read is at `next_offset` (LQ-58 to LQ-68)."""

    FOUND = "FOUND"
    NO_MATCHED_MESSAGE = "NO_MATCHED_MESSAGE"
    MESSAGE_WAS_REMOVING = "MESSAGE_WAS_REMOVING"
    OFFSET_FOUND_NULL = "OFFSET_FOUND_NULL"
    OFFSET_OVERFLOW_BADLY = "OFFSET_OVERFLOW_BADLY"
    OFFSET_OVERFLOW_ONE = "OFFSET_OVERFLOW_ONE"
    OFFSET_TOO_SMALL = "OFFSET_TOO_SMALL"
    NO_MESSAGE_IN_QUEUE = "NO_MESSAGE_IN_QUEUE"
