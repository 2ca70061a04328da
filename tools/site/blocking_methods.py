"""An extension of Griffe: methods that are made by `blocking(AsyncClass.method)` have the signature and the docstring
of that method, as they have at run time. Griffe reads the source, where they are only assignments.
"""

from __future__ import annotations

from typing import Any

from griffe import Attribute, Class, Extension, Function, GriffeLoader, Module


class BlockingMethods(Extension):
    """Replaces the assignments of a package when it is loaded."""

    def on_package(self, *, pkg: Module, loader: GriffeLoader, **_: Any) -> None:
        """Called by Griffe after a package was read."""
        _walk(pkg, loader)


def _walk(module: Module, loader: GriffeLoader) -> None:
    for member in list(module.members.values()):
        if isinstance(member, Module):
            _walk(member, loader)
        elif isinstance(member, Class):
            for name, attribute in list(member.members.items()):
                if isinstance(attribute, Attribute) and str(attribute.value).startswith("blocking("):
                    member.set_member(name, _method(member, attribute, loader))


def _method(owner: Class, attribute: Attribute, loader: GriffeLoader) -> Function:
    class_name, _, name = str(attribute.value).removeprefix("blocking(").rstrip(")").partition(".")
    imported = loader.modules_collection[owner.module.resolve(class_name)]
    found = imported[name] if name in imported.members else imported.inherited_members[name]
    source = found.final_target if found.is_alias else found
    return Function(
        attribute.name,
        lineno=source.lineno,
        endlineno=source.endlineno,
        parameters=source.parameters,
        returns=source.returns,
        docstring=source.docstring,
    )
