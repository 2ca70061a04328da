"""The answers of the engines by the names of the documents: putting (LQ-21), reading a record (LQ-19), getting (LQ-58
to LQ-67).

Programs see errors of `evenq.errors` and lists of messages; these words are for the level below, where an answer says
how to go on.
"""

from enum import StrEnum

__all__ = ["AppendStatus", "GetStatus", "PutStatus", "ReadStatus"]


class PutStatus(StrEnum):
    """What became of a batch (LQ-10, LQ-21)."""

    PUT_OK = "PUT_OK"
    CREATE_MAPEDFILE_FAILED = "CREATE_MAPEDFILE_FAILED"
    """No new file could be made; the word is the documents'."""
    MESSAGE_ILLEGAL = "MESSAGE_ILLEGAL"
    """A message or its properties are over their limit; nothing of the batch is stored."""
    UNKNOWN_ERROR = "UNKNOWN_ERROR"


class AppendStatus(StrEnum):
    """What became of an append to one file (LQ-21, LQ-23)."""

    PUT_OK = "PUT_OK"
    END_OF_FILE = "END_OF_FILE"
    """The next message does not fit in what is left of the file."""
    MESSAGE_SIZE_EXCEEDED = "MESSAGE_SIZE_EXCEEDED"
    PROPERTIES_SIZE_EXCEEDED = "PROPERTIES_SIZE_EXCEEDED"
    UNKNOWN_ERROR = "UNKNOWN_ERROR"


class ReadStatus(StrEnum):
    """What starts at a place of a file (LQ-19)."""

    RECORD = "RECORD"
    END = "END"
    """Filler, or no room for a record: the file's data ends here."""
    EMPTY = "EMPTY"
    """Nothing was ever written here."""
    CUT = "CUT"
    """A record begins here and goes on behind the bytes that are there."""
    BAD_MAGIC = "BAD_MAGIC"
    BAD_CHECKSUM = "BAD_CHECKSUM"
    """The checksum, a length or the place that a record names for itself does not fit."""


class GetStatus(StrEnum):
    """What a read of one queue found; `next_offset` says where to go on (LQ-58 to LQ-68)."""

    FOUND = "FOUND"
    NO_MATCHED_MESSAGE = "NO_MATCHED_MESSAGE"
    MESSAGE_WAS_REMOVING = "MESSAGE_WAS_REMOVING"
    OFFSET_FOUND_NULL = "OFFSET_FOUND_NULL"
    OFFSET_OVERFLOW_BADLY = "OFFSET_OVERFLOW_BADLY"
    OFFSET_OVERFLOW_ONE = "OFFSET_OVERFLOW_ONE"
    OFFSET_TOO_SMALL = "OFFSET_TOO_SMALL"
    NO_MESSAGE_IN_QUEUE = "NO_MESSAGE_IN_QUEUE"
