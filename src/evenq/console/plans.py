"""Parts of every change that is shown as a plan first: the digest of a plan, its age, and values of forms.

The page of a plan carries the fields of its change, a digest of what was shown, and its time. The console plans again
before it applies anything, and shows the new plan instead if the digest differs or the plan is old.
"""

from __future__ import annotations

import hashlib
import json
import re

from evenq.console.pages import Visit
from evenq.errors import BadRequest

PLAN_MS = 600_000
CHANGED = "The cluster has changed since the plan was shown. Nothing was done; check the new plan and confirm it."
OLD = "The plan is older than ten minutes. Nothing was done; check the plan and confirm it."
_UNIT_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_DURATION = re.compile(r"([0-9]{1,12})\s*(ms|s|m|h|d)")


def digest(*values: object) -> str:
    """Returns a digest of what a plan shows. Values are plain: texts, numbers, sequences of them."""
    return hashlib.sha256(json.dumps(values).encode()).hexdigest()


def problem_of(visit: Visit, kind: str) -> str:
    """Returns why the plan that was confirmed is not applied; empty: it is. `kind`: the digest of the plan now."""
    if visit.text("kind") != kind:
        return CHANGED
    if not 0 <= visit.console.clock.now_ms() - visit.number("planned_ms") <= PLAN_MS:
        return OLD
    return ""


def duration_ms(name: str, text: str) -> int:
    """Returns ms of `500ms`, `10s`, `5m`, `2h`, `1d`. Raises BadRequest, which names the field."""
    found = _DURATION.fullmatch(text.strip())
    if found is None:
        raise BadRequest(f"{name} is {text[:50]!r}; write a duration: 500ms, 10s, 5m, 2h or 1d")
    return int(found[1]) * _UNIT_MS[found[2]]


def duration_text(ms: int) -> str:
    """Returns a duration in the largest unit that is exact."""
    unit = next((unit for unit in ("d", "h", "m", "s") if ms and ms % _UNIT_MS[unit] == 0), "ms")
    return f"{ms // _UNIT_MS[unit]}{unit}"


def whole(name: str, text: str, *, least: int = 0, most: int = (1 << 31) - 1) -> int:
    """Returns a whole number of a form. Raises BadRequest, which names the field and its range."""
    text = text.strip()
    value = int(text) if text.isascii() and text.isdecimal() and len(text) < 20 else -1
    if not least <= value <= most:
        raise BadRequest(f"{name} is {text[:50]!r}; give a whole number from {least} to {most}")
    return value
