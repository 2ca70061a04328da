"""The descriptor pool that holds every message of this package, apart from protobuf's default pool.

Called by the generated modules beside it, once each, when they are imported. Always true: nothing of ours is in the
default pool, so a process may import another client of `apache.rocketmq.v2` too (the same names twice in one pool are
an error, "duplicate symbol").

The price: `google.protobuf.Timestamp` and `Duration` exist a second time here. The classes below are the ones our
messages take; those of `google.protobuf.timestamp_pb2` are refused. `evenq.wire.convert` sets and reads such fields
without either class.

Written by hand, unlike the rest of the folder.
"""

from typing import TYPE_CHECKING, Any

from google.protobuf import descriptor_pool, duration_pb2, timestamp_pb2
from google.protobuf.descriptor import Descriptor, FileDescriptor
from google.protobuf.internal.enum_type_wrapper import EnumTypeWrapper
from google.protobuf.message import Message
from google.protobuf.reflection import GeneratedProtocolMessageType

POOL = descriptor_pool.DescriptorPool()


def load(serialized: bytes, module: str, names: dict[str, Any]) -> FileDescriptor:
    """Add one file to the pool, and its messages, enums and enum values to `names`, the globals of `module`.
    The files it imports must have been loaded before.
    """
    file: FileDescriptor = POOL.AddSerializedFile(serialized)
    for name, enum in file.enum_types_by_name.items():
        names[name] = EnumTypeWrapper(enum)
        names.update((value.name, value.number) for value in enum.values)
    for name, descriptor in file.message_types_by_name.items():
        names[name] = _message_class(descriptor, module, outer="")
    return file


def _message_class(descriptor: Descriptor, module: str, *, outer: str) -> type[Message]:
    # What protobuf's own builder does, without telling the default symbol database. Module and qualified name are given
    # for pickle and for people.
    names: dict[str, Any] = {
        name: _message_class(nested, module, outer=f"{outer}{descriptor.name}.")
        for name, nested in descriptor.nested_types_by_name.items()
    }
    names |= {"DESCRIPTOR": descriptor, "__module__": module, "__qualname__": outer + descriptor.name}
    made: Any = GeneratedProtocolMessageType
    built: type[Message] = made(descriptor.name, (Message,), names)
    return built


if TYPE_CHECKING:

    class Timestamp(Message):
        """Seconds and nanoseconds since the epoch; nanoseconds count forward, also before the epoch."""

        seconds: int
        nanos: int

        def __init__(self, *, seconds: int = 0, nanos: int = 0) -> None: ...

    class Duration(Message):
        """Seconds and nanoseconds, both of the same sign."""

        seconds: int
        nanos: int

        def __init__(self, *, seconds: int = 0, nanos: int = 0) -> None: ...

else:
    for _file in (timestamp_pb2, duration_pb2):
        load(_file.DESCRIPTOR.serialized_pb, __name__, globals())
