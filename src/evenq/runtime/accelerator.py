"""Choice of the compiled accelerator `evenq_native`: the one place that imports it.

Everything works without it, in plain Python. The variable EVENQ_NATIVE decides: `auto` (the default) uses it if the
version that belongs to this evenq is installed, `off` never, and with `on` a broker does not start without it. It is a
variable and no setting, because the choice counts for all programs of an installation and changes no result.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from types import ModuleType
from typing import Final

from evenq.errors import SettingsError
from evenq.runtime.version import __version__

VARIABLE: Final = "EVENQ_NATIVE"
MODULE: Final = "evenq_native"
PARTS: Final = ("PlainReader", "pack_messages")
INSTALL: Final = "in a clone: make native; otherwise: pip install ./native in the source of this version"


@dataclass(frozen=True, slots=True, kw_only=True)
class Accelerator:
    """The accelerator that this process uses, or the reason why it uses none."""

    module: ModuleType | None
    """The module; None: plain Python is used."""
    state: str
    """Its version if it is used, otherwise the reason why not."""
    problem: str = ""
    """Error that forbids a server to start; empty: none."""

    @property
    def version(self) -> str:
        """Version of the module in use; empty if none is."""
        return self.state if self.module is not None else ""

    def named(self, version: str) -> str:
        """Returns the version of evenq as it is shown of a server, which says whether the accelerator is used."""
        return f"{version} (native)" if self.module is not None else version

    def must_be_right(self) -> None:
        """Raises SettingsError if EVENQ_NATIVE requires what is not there, or has an unknown value."""
        if self.problem:
            raise SettingsError(self.problem)


@cache
def accelerator() -> Accelerator:
    """Returns the choice for this process. The environment is read once."""
    choice = os.environ.get(VARIABLE, "") or "auto"
    if choice == "off":
        return Accelerator(module=None, state=f"off ({VARIABLE}=off)")
    module, state = _installed()
    if choice not in {"auto", "on"}:
        problem = f"{VARIABLE} is {choice[:64]!r}; it must be on, off or auto"
        return Accelerator(module=None, state=f"off ({problem})", problem=problem)
    if module is None and choice == "on":
        problem = (
            f"{VARIABLE}=on, but {MODULE} is {state}; install it ({INSTALL}), or use plain Python with {VARIABLE}=auto"
        )
        return Accelerator(module=None, state=state, problem=problem)
    return Accelerator(module=module, state=state)


def _installed() -> tuple[ModuleType | None, str]:
    """Returns the module if it can be used, and its version or the reason why not."""
    try:
        module = import_module(MODULE)
    except ModuleNotFoundError as error:
        if error.name != MODULE:
            raise
        return None, "not installed"
    except ImportError as error:  # built for another machine or another C library
        return None, f"not usable here ({error})"
    version = str(getattr(module, "__version__", "unknown"))
    if version != __version__:
        return None, f"of version {version}, and this is evenq {__version__}"
    missing = [part for part in PARTS if not hasattr(module, part)]
    if missing:  # built in a clone before the source of this version had them
        return None, f"an older build of version {version}, without {', '.join(missing)}"
    return module, version
