"""From the arguments of a client to its plan, with all checks; shared by the sync and asyncio classes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import TypeVar

from evenq.allocation import Strategy, by_name, stand_in
from evenq.client.core.clients.user_functions import check_function
from evenq.client.core.reading.start_offset import in_ms, start_policy, timestamp_of
from evenq.client.loops.consumers.pushing import PushPlan
from evenq.client.loops.consumers.receiving import SimplePlan
from evenq.client.loops.groups.membership import MemberPlan
from evenq.client.loops.lite.lite_member import LitePlan
from evenq.client.options import LiteOptions, PullOptions, PushOptions, SimpleOptions
from evenq.client.wiring import placed
from evenq.errors import BadRequest, IllegalFilterExpression, IllegalGroup, IllegalTopic
from evenq.model import (
    FilterExpression,
    FilterType,
    Message,
    MessageModel,
    MessageType,
    Permission,
    StartFrom,
    group_problem,
    topic_problem,
)

ASSIGNMENTS: dict[str, bool | None] = {"auto": None, "client": False, "server": True}
"""By argument: whether a member queries the server for its assignment; None: while the group has a strategy there."""

EVERY_MS_MAX = 366 * 86_400_000
_INTERVAL = re.compile(r"(\d{1,12})\s*(ms|s|m|h|d)")
_UNIT_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}

Options = TypeVar("Options")


def options_of(kind: type[Options], options: Options | None) -> Options:
    """Returns the options, or the default ones. Raises BadRequest for those of another client."""
    if options is None:
        return kind()
    if not isinstance(options, kind):
        raise BadRequest(f"options is a {type(options).__name__}; give {kind.__name__}(...), or nothing")
    return options


def check_callbacks(on_rebalance: object, on_error: object = None, *, awaited_by: str = "") -> None:
    """Raises BadRequest as `check_function`. None means that there is no callback."""
    if on_rebalance is not None:
        check_function("on_rebalance", on_rebalance, "gained", "lost", awaited_by=awaited_by)
    if on_error is not None:
        check_function("on_error", on_error, "error", awaited_by=awaited_by)


def filters(subscriptions: Mapping[str, str | FilterExpression]) -> dict[str, FilterExpression]:
    """Parses subscriptions; a text is a tag expression. Raises BadRequest, IllegalTopic, IllegalFilterExpression."""
    if not isinstance(subscriptions, Mapping):
        one = subscriptions if isinstance(subscriptions, str) else "topic"
        raise BadRequest(
            f"subscriptions is {subscriptions!r:.80}; give a dict from topics to filters, as in {{{one!r}: '*'}}"
        )
    result: dict[str, FilterExpression] = {}
    for topic, given in subscriptions.items():
        problem = topic_problem(topic)
        if problem:
            raise IllegalTopic(problem)
        if not isinstance(given, str | FilterExpression):
            raise IllegalFilterExpression(
                f"the filter of topic {topic} is {given!r:.80}; give a text of tags, as in 'a || b' or '*', or "
                "FilterExpression.sql(...)"
            )
        expression = FilterExpression(given or "*") if isinstance(given, str) else given
        if not isinstance(expression.expression, str) or expression.type not in set(FilterType):
            raise IllegalFilterExpression(
                f"the filter of topic {topic} is {expression!r:.120}; give FilterExpression('a || b') or "
                "FilterExpression.sql(\"region = 'eu'\")"
            )
        if expression.type is FilterType.TAG and any("|" in part for part in expression.expression.split("||")):
            raise IllegalFilterExpression(
                f"the filter of topic {topic} is {expression.expression!r:.80}; a tag holds no '|', write tags as in "
                "'a || b'"
            )
        if not expression.expression.strip():
            raise IllegalFilterExpression(f"the filter of topic {topic} is blank; give `*` or tags as in `a || b`")
        result[topic] = expression
    return result


def push_plan(
    *,
    group: str,
    subscriptions: Mapping[str, str | FilterExpression],
    model: MessageModel | str,
    assignment: str,
    strategy: str | Strategy,
    consume_threads: int,
    start_from: StartFrom | str | None,
    start_timestamp_ms: int | str,
    options: PushOptions | None,
    ordered: bool | None = None,
) -> PushPlan:
    """Raises IllegalGroup, IllegalTopic, BadRequest."""
    if not subscriptions:
        raise BadRequest(f"consumer group {group} subscribes to nothing; give subscriptions={{'topic': '*'}} (CS-1)")
    _check(group, assignment, model)
    _check_threads(consume_threads)
    options = options_of(PushOptions, options)
    return PushPlan(
        group=group,
        subscriptions=filters(subscriptions),
        model=MessageModel(model),
        strategy=_strategy(strategy, assignment),
        ask_server=ASSIGNMENTS[assignment],
        slots=consume_threads,
        start_from=None if start_from is None else start_policy(start_from),
        start_timestamp_ms=timestamp_of(start_timestamp_ms),
        options=placed(options),
        ordered=ordered,
        retry_topic=options.retry == "broker" and not ordered,
    )


def pull_plan(
    *,
    group: str,
    subscriptions: Mapping[str, str | FilterExpression],
    model: MessageModel | str,
    assignment: str,
    strategy: str | Strategy,
    start_from: StartFrom | str | None,
    start_timestamp_ms: int | str,
    options: PullOptions | None,
) -> MemberPlan:
    """Without subscriptions the user chooses queues. Raises IllegalGroup, IllegalTopic, BadRequest."""
    _check(group, assignment, model)
    options = options_of(PullOptions, options)
    if options.read_from == "any" and subscriptions:
        raise BadRequest(
            "read_from='any' needs queues that are chosen with assign; a consumer that shares a group's queues reads "
            "from leaders, which keep the queue locks: leave out subscriptions, or read_from"
        )
    return MemberPlan(
        group=group,
        subscriptions=filters(subscriptions),
        model=MessageModel(model),
        strategy=_strategy(strategy, assignment),
        ask_server=ASSIGNMENTS[assignment],
        start_from=None if start_from is None else start_policy(start_from),
        start_timestamp_ms=timestamp_of(start_timestamp_ms),
        options=placed(options.engine()),
        auto_commit=options.auto_commit,
        chosen=not subscriptions,
        any_copy=options.read_from == "any",
    )


def simple_plan(
    *,
    group: str,
    subscriptions: Mapping[str, str | FilterExpression],
    start_from: StartFrom | str | None,
    start_timestamp_ms: int | str,
    options: SimpleOptions | None,
) -> SimplePlan:
    """Raises IllegalGroup, IllegalTopic, BadRequest."""
    problem = group_problem(group)
    if problem:
        raise IllegalGroup(problem)
    expressions = filters(subscriptions)
    if not expressions:
        raise BadRequest(f"consumer group {group} subscribes to nothing; give subscriptions={{'topic': '*'}} (CS-1)")
    return SimplePlan(
        group=group,
        subscriptions=expressions,
        start_from=None if start_from is None else start_policy(start_from),
        start_timestamp_ms=timestamp_of(start_timestamp_ms),
        options=options_of(SimpleOptions, options),
    )


def lite_plan(
    *,
    group: str,
    topic: str,
    lite_topics: Iterable[str],
    options: LiteOptions | None,
    consume_threads: int | None = None,
) -> LitePlan:
    """`consume_threads` None: there is no listener. Raises IllegalGroup, IllegalTopic, BadRequest."""
    problem = group_problem(group)
    if problem:
        raise IllegalGroup(problem)
    problem = topic_problem(topic)
    if problem:
        raise IllegalTopic(problem)
    if isinstance(lite_topics, str):
        raise BadRequest(f"lite_topics is the text {lite_topics!r}; give a list of names, as in [{lite_topics!r}]")
    if consume_threads is not None:
        _check_threads(consume_threads)
    return LitePlan(
        group=group,
        topic=topic,
        lite_topics=tuple(dict.fromkeys(lite_topics)),
        options=options_of(LiteOptions, options),
        slots=consume_threads or 0,
    )


def _check_threads(consume_threads: int) -> None:
    if not 1 <= consume_threads <= 1_000:
        raise BadRequest(f"consume_threads is {consume_threads}, the range is 1 to 1000")


def _check(group: str, assignment: str, model: MessageModel | str) -> None:
    problem = group_problem(group)
    if problem:
        raise IllegalGroup(problem)
    if assignment not in ASSIGNMENTS:
        raise BadRequest(f"assignment {assignment!r} is unknown; it is 'auto', 'client' or 'server'")
    if model not in set(MessageModel):
        raise BadRequest(f"model {model!r} is unknown; it is one of {', '.join(MessageModel)}")


def _strategy(given: str | Strategy, assignment: str) -> Strategy:
    if given == "CONFIG":
        raise BadRequest(
            "strategy CONFIG is a list of queues and needs it: give strategy=Config((MessageQueue(topic, broker, 0), "
            "...)) of evenq.allocation, each member its own"
        )
    if given == "MACHINE_ROOM" and assignment != "server":
        raise BadRequest(
            "strategy MACHINE_ROOM divides the queues of some rooms and needs their names: give "
            "strategy=MachineRoom(frozenset({'room-1'})) of evenq.allocation, or take MACHINE_ROOM_NEARBY-AVG"
        )
    strategy = by_name(given) if isinstance(given, str) else given
    usual = stand_in(strategy)
    if usual == strategy or assignment == "server":  # `usual`: how members divide while the server does not share
        return usual
    raise BadRequest(
        f"members cannot divide by {strategy.name} themselves, because they do not know the current owners; "
        "give the group this strategy, which its members then follow, and the consumer none"
    )


def permission_of(permission: Permission | str) -> Permission:
    """Returns the permission with this name, `read-write` or `READ_WRITE`. Raises BadRequest."""
    if isinstance(permission, Permission):
        return permission
    known = Permission.__members__.get(permission.upper().replace("-", "_"))
    if known is None:
        raise BadRequest(f"permission {permission!r} is unknown; it is one of {', '.join(Permission.__members__)}")
    return known


def topic_type(message_type: MessageType | str | None) -> MessageType | None:
    """Returns the type with this name, in any case; None: not given. Raises BadRequest."""
    if message_type is None or isinstance(message_type, MessageType):
        return message_type
    if message_type.upper() not in set(MessageType):
        raise BadRequest(f"message type {message_type!r} is unknown; it is one of {', '.join(MessageType)}")
    return MessageType(message_type.upper())


def check_recurring(message: Message) -> None:
    """Raises BadRequest for what is not a message that a schedule can send."""
    if not isinstance(message, Message):
        raise BadRequest(f"the message is a {type(message).__name__}; give an evenq.Message with topic and body")
    for name in ("delivery_ms", "delay", "delay_level", "priority", "lite_topic", "message_id"):
        if getattr(message, name) not in (None, 0, ""):
            raise BadRequest(
                f"the message of a schedule has {name}; give topic, body, tag, keys, properties and message_group only"
            )


def interval_ms(every: timedelta | str | int | None) -> int:
    """Returns an interval in ms; 0: none was given. Raises BadRequest."""
    if every is None:
        return 0
    if isinstance(every, timedelta):
        every = every // timedelta(milliseconds=1)
    if isinstance(every, str):
        match = _INTERVAL.fullmatch(every.strip())
        if match is None:
            raise BadRequest(f"every is {every!r:.80}, give an interval such as '90s', '10m', '2h' or '1d'")
        every = int(match[1]) * _UNIT_MS[match[2]]
    if not isinstance(every, int) or not 1_000 <= every <= EVERY_MS_MAX:
        raise BadRequest(f"every is {every!r:.80} ms, the range is 1000 ms (1 s) to {EVERY_MS_MAX} ms (366 d)")
    return every


def reset_target(to: str | int, timestamp_ms: int | None, skip: int | None, like_group: str) -> tuple[str, int]:
    """Returns the target of an offset reset and its value, in the terms of the wire. Raises BadRequest."""
    if (timestamp_ms is not None) + (skip is not None) + bool(like_group) > 1:
        raise BadRequest("a reset has one target: give one of timestamp_ms, skip and like_group")
    if timestamp_ms is not None:
        return "TIMESTAMP", in_ms("timestamp_ms", timestamp_ms)
    if skip is not None:
        return "SKIP", skip
    if like_group:
        return "LIKE_GROUP", 0
    if isinstance(to, int):
        return "OFFSET", to
    if to not in {"earliest", "latest"}:
        raise BadRequest(f"to={to!r} is not valid; give 'earliest', 'latest', an offset, or timestamp_ms")
    return to.upper(), 0
