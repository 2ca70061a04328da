"""Pages of the console for the commands that the doctor names.

The doctor ends each finding with a command of the command line. Those that only look lead to the page that shows the
same; those that change something safely lead to a plan, which has to be confirmed. Every other command stays a text:
nothing that deletes, forgets, skips or closes is a button.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

COMMAND_CHARACTERS_MAX = 4_096


@dataclass(frozen=True, slots=True, kw_only=True)
class Fix:
    """A page of the console for a command."""

    label: str
    path: tuple[str, ...]
    query: Mapping[str, str] = field(default_factory=dict)
    changes: bool = False
    """True: the page is the plan of a change."""


def fix_of(command: str) -> Fix | None:
    """Returns the page for a command such as `evenq group create billing --strategy STICKY`; None: there is none."""
    if len(command) > COMMAND_CHARACTERS_MAX:
        return None
    try:
        words = shlex.split(command)
    except ValueError:
        return None
    if len(words) < 3 or words[0] != "evenq":
        return None
    names, options = _parsed(words[3:])
    return _fix(f"{words[1]} {words[2]}", names, options)


def _parsed(words: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """Returns names and options; an option without a value is `yes`."""
    names: list[str] = []
    options: dict[str, str] = {}
    left = list(words)
    while left:
        word = left.pop(0)
        if word == "--":
            names += left
            break
        if not word.startswith("--"):
            names.append(word)
            continue
        has_value = bool(left) and not left[0].startswith("--")
        options[word[2:]] = left.pop(0) if has_value and word not in _FLAGS else "yes"
    return names, options


_FLAGS = {"--ordered", "--yes", "--force"}
_SETTINGS = {
    "ordered": "ordered",
    "strategy": "strategy",
    "max-attempts": "max_attempts",
    "from": "start_from",
    "weight": "weight",
    "moves-max": "moves_max",
    "hold": "hold",
    "hold-lag-max": "hold_lag_max",
}


def _fix(verb: str, names: Sequence[str], options: Mapping[str, str]) -> Fix | None:
    first = names[0] if names else ""
    match verb:
        case "group create" if first and options and options.keys() <= _SETTINGS.keys():
            fields = {_SETTINGS[name]: value for name, value in options.items()}
            return _change("Plan these settings", "new-group", "plan", group=first, **fields)
        case "topic create" if first and not options:
            return _change("Plan this topic", "topic-plan", change="create", topic=first)
        case "topic scale" if first and "queues" in options and options.keys() <= {"queues", "broker"}:
            return _change("Plan these queues", "topic-plan", change="scale", topic=first, **options)
        case "topic permit" if len(names) == 2 and options.keys() <= {"broker"}:
            return _change(
                "Plan this permission", "topic-plan", change="permit", topic=first, permission=names[1], **options
            )
        case "offset reset" if first and options.keys() == {"topic", "to-offset", "queue"}:
            broker, _, number = options["queue"].rpartition("/")
            fields = {"topic": options["topic"], "broker": broker, "queue": number, "offset": options["to-offset"]}
            return _change("Plan this move", "groups", first, "plan", change="reset", to="offset", **fields)
        case _:
            return _view(verb, first, options)


def _change(label: str, *path: str, **query: str) -> Fix:
    return Fix(label=label, path=path, query=query, changes=True)


def _view(verb: str, first: str, options: Mapping[str, str]) -> Fix | None:
    match verb:
        case "client show" if first:
            return Fix(label="Show the client", path=("clients", first))
        case "client list":
            return Fix(label="Show the clients", path=("clients",), query={"q": options.get("group", "")})
        case "group show" if first:
            return Fix(label="Show the group", path=("groups", first))
        case "group explain" if first:
            query = {"tab": "why", "topic": options.get("topic", "")}
            return Fix(label="Show the owners", path=("groups", first), query=query)
        case "offset show" if first:
            return Fix(label="Show the queues", path=("groups", first), query={"topic": options.get("topic", "")})
        case "schedule list" if first:
            return Fix(label="Show the schedules", path=("schedules",), query={"topic": first})
        case "message find" if first:
            query = {"topic": first} | {name: options[name] for name in ("queue", "offset") if name in options}
            return Fix(label="Show the message", path=("messages",), query=query | {"order": "oldest"})
        case "broker list" | "broker show" | "cluster show":
            return Fix(label="Show the brokers", path=("",))
        case _:
            return None
