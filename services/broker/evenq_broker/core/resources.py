"""From a `Resource` of the wire to the one name of a topic or group: the namespace is part of the identity (wire
contract 2.4).
"""

from __future__ import annotations

from typing import Protocol

__all__ = ["Named", "qualified"]


class Named(Protocol):
    """A v2 `Resource`."""

    @property
    def resource_namespace(self) -> str: ...
    @property
    def name(self) -> str: ...


def qualified(resource: Named, header_namespace: str = "") -> str:
    """`namespace%name`, or the bare name. The header's namespace counts where the resource has none."""
    namespace = resource.resource_namespace or header_namespace
    return f"{namespace}%{resource.name}" if namespace else resource.name
