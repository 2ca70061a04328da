"""The grammar of `evenq group`."""

from __future__ import annotations

from typing import Any

from evenq.cli.grammar import add_group_name, add_namespace, add_topic_name, command, noun
from evenq.cli.group.policies import add_balance, add_retry
from evenq.cli.values import duration_ms, positive

_GROUP = """\
examples:
  evenq group create billing --max-attempts 5
  evenq group create ledger --ordered --strategy AVG
  evenq group create calls --retry-delays "1s 10s 1m" --max-attempts 5
  evenq group create feeds --retry-initial 500ms --retry-max 10m
  evenq group create rides --strategy STICKY --weight LAG --moves-max 50 --hold 30s --hold-lag-max 10000
  evenq group create rides --strategy NONE     members divide the queues themselves again
  evenq group list
  evenq group show billing
  evenq group explain billing              the reason for each queue's owner
  evenq group simulate billing --members 12
  evenq group doctor billing               problems, with one fix for each
"""
_EXPLAIN = """\
examples:
  evenq group explain billing                             owner of each queue, since when, and why
  evenq group explain billing --topic orders --json

Without a rebalancer, brokers know which member holds which queue lock, but not why.
"""
_SIMULATE = """\
examples:
  evenq group simulate billing --members 12               the shares of twelve members
  evenq group simulate billing --queues 24 --topic orders
  evenq group simulate billing --strategy STICKY --rows   list each queue that would move
  evenq group simulate billing --lose-zone b

Nothing is changed: the rebalancer only computes the result. This needs a rebalancer.
"""
_DOCTOR = """\
examples:
  evenq group doctor billing
  evenq group doctor billing --stuck 10s --json

Exit code 0: healthy; 1: problems were found, or a check was not possible. A problem that a rebalance may cause for a
moment is checked again after --watch.
"""


def add_group(commands: Any) -> None:
    actions = noun(commands, "group", "create, show, explain, check and delete consumer groups", _GROUP)
    create = command(
        actions, "create", "create a consumer group or change its settings", "group.commands", "create", examples=_GROUP
    )
    add_group_name(create, "name")
    create.add_argument("--ordered", action="store_true", help="deliver each message group in order")
    create.add_argument(
        "--max-attempts", type=positive, default=0, metavar="N", help="most deliveries of a message (default 17)"
    )
    create.add_argument(
        "--strategy",
        default="",
        metavar="NAME",
        help="allocate strategy: STICKY, AVG, AVG_BY_CIRCLE ...; MACHINE_ROOM needs rooms (rebalancer's setting, or "
        "zones), CONFIG works in clients only; NONE: the members divide the queues themselves (default of a new group)",
    )
    create.add_argument(
        "--from",
        dest="start_from",
        default="",  # not given: an existing group keeps its value
        type=str.upper,
        choices=("LAST", "FIRST"),
        help="where to start in a queue without progress (default LAST)",
    )
    add_retry(create)
    add_balance(create)
    add_namespace(command(actions, "list", "list all consumer groups", "group.commands", "list_all"))
    show = command(
        actions, "show", "show a group's members, queues and lag, or all groups", "group.commands", "show", wide=True
    )
    add_group_name(show, "name", nargs="?")
    _add_reports(actions)
    delete = command(actions, "delete", "delete a group and its progress", "group.commands", "delete")
    add_group_name(delete, "name")
    delete.add_argument("--yes", action="store_true", help="confirm the deletion")


def _add_reports(actions: Any) -> None:
    explain = command(
        actions, "explain", "explain the owner of each queue", "group.reports", "explain", wide=True, examples=_EXPLAIN
    )
    add_group_name(explain, "name")
    add_topic_name(explain, "--topic", metavar="NAME", default="", help="only this topic")
    simulate = command(
        actions, "simulate", "show the effect of a change of the group", "group.reports", "simulate", examples=_SIMULATE
    )
    add_group_name(simulate, "name")
    add_topic_name(simulate, "--topic", metavar="NAME", default="", help="only this topic (default: all of the group)")
    simulate.add_argument("--members", type=positive, default=0, metavar="N", help="assume N members")
    simulate.add_argument("--queues", type=positive, default=0, metavar="N", help="assume N queues on each broker")
    simulate.add_argument("--strategy", default="", metavar="NAME", help="assume this strategy")
    simulate.add_argument(
        "--lose-zone", default="", metavar="ZONE", help="assume that the members and brokers of this zone are lost"
    )
    simulate.add_argument("--rows", action="store_true", help="list the queues that would move")
    doctor = command(actions, "doctor", "check a group for problems", "group.reports", "doctor", examples=_DOCTOR)
    add_group_name(doctor, "name")
    doctor.add_argument(
        "--watch",
        dest="watch_ms",
        type=duration_ms,
        default=0,
        metavar="TIME",
        help="time between two checks, at most 10s (default 1500ms)",
    )
    doctor.add_argument(
        "--stuck",
        dest="stuck_ms",
        type=duration_ms,
        default=0,
        metavar="TIME",
        help="report queues whose oldest message is unfinished for this time (default: broker setting, 60s)",
    )
