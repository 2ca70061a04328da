"""`evenq broker elect-unclean`: what would be lost if a copy led that is not in sync, and, with the operator's consent,
the election. The plan is printed first in both cases.
"""

from __future__ import annotations

import argparse

from evenq.cli.admin import with_admin
from evenq.cli.broker_groups import copies_listing
from evenq.cli.output import Column, Listing, Page, Scalar, print_page
from evenq.client.async_admin import Admin
from evenq.client.core.admin.broker_group_views import BrokerCopyView, UncleanPlanView
from evenq.errors import PreconditionFailed

__all__ = ["elect_unclean"]

_LOST = (
    Column("copy", "copy", "number"),
    Column("store_id", "store"),
    Column("away_since_ms", "away since", "time"),
    Column("answers", "answers with another store"),
)
_LOST_FOR_GOOD, _NOT_LOST = "What only these have is lost for good", "These may lead by the group record"
_ENDS = (
    Column("copy", "copy", "number"),
    Column("log_end", "log end", "number"),
    Column("log_epoch", "epoch of its last record", "number"),
    Column("committed_end", "knows committed up to", "number"),
    Column("suggested", "has most"),
)


def elect_unclean(options: argparse.Namespace) -> None:
    """`evenq broker elect-unclean NAME [--copy N --accept-data-loss]`."""
    acts = options.accept_data_loss and options.copy is not None

    async def look(admin: Admin) -> UncleanPlanView:
        return await admin.plan_unclean_election(
            options.name, copy=options.copy, reason=options.reason, despite_better=options.despite_better
        )

    plan = with_admin(options, look)
    if not (acts and options.json):
        print_page(_plan_page(plan, options), as_json=options.json)
    if options.accept_data_loss and options.copy is None:
        raise PreconditionFailed("name the copy that is to lead: --copy N, one of those that answer")
    if not acts:
        return
    if plan.refusal:
        raise PreconditionFailed(f"{plan.refusal}. Nothing was changed")

    async def act(admin: Admin) -> UncleanPlanView:
        return await admin.elect_unclean(
            options.name,
            options.copy,
            accept_data_loss=True,
            reason=options.reason,
            despite_better=options.despite_better,
            epoch=plan.group.epoch,
        )

    done = with_admin(options, act)
    print_page(_done_page(done, options), as_json=options.json)


def _plan_page(plan: UncleanPlanView, options: argparse.Namespace) -> Page:
    here = {one.copy for one in plan.group.copies if one.may_lead}  # with the store of the record
    lost: list[tuple[Scalar, ...]] = [
        (one.copy, one.store_id, one.away_since_ms, one.away_since_ms == 0 and one.copy not in here)
        for one in plan.lost
    ]
    ends: list[tuple[Scalar, ...]] = [
        (one.copy, one.log_end, one.log_epoch, one.committed_end, one.copy == plan.suggested)
        for one in plan.group.copies
        if one.state != "AWAY"
    ]
    return Page(
        facts=_facts(plan),
        listings=[
            copies_listing([plan.group]),
            Listing(key="lost", columns=_LOST, rows=lost, title=_NOT_LOST if plan.refusal else _LOST_FOR_GOOD),
            Listing(key="ends", columns=_ENDS, rows=ends, title="What is left"),
        ],
        sentence=_plan_sentence(plan, options),
    )


def _plan_sentence(plan: UncleanPlanView, options: argparse.Namespace) -> str:
    group = f"broker group {plan.group.broker_name}"
    if plan.refusal:
        return f"No unclean election in {group}: {plan.refusal}."
    copy = options.copy if options.copy is not None else plan.suggested
    if copy is None:
        return f"No unclean election in {group}: no copy answers that could lead."
    known = next((one for one in plan.group.copies if one.copy == copy), None)
    sentence = (
        f"If copy {copy} leads {group} from now on, all that was committed behind {_end(known)} of its log is lost: "
        "messages, acknowledgements and progress of consumers. How much that is, no copy that answers knows; a copy "
        "that comes back later with more is cut. Copies that still run, and are not reached from here, may go on "
        "acknowledging until they see it."
    )
    if not options.accept_data_loss:
        sentence += (
            f" Nothing was done: if the copies below are gone for good, do it with --copy {copy} --accept-data-loss."
        )
    return sentence


def _done_page(done: UncleanPlanView, options: argparse.Namespace) -> Page:
    election = done.election
    if election is None:  # a server that knows more
        return Page(facts=_facts(done), sentence="Nothing was done.")
    least = done.group.in_sync_min
    sentence = (
        f"Copy {election.copy} leads broker group {done.group.broker_name} from epoch {election.epoch} on, with its "
        f"log up to {election.log_end:,}; this stays in the group record, and `evenq cluster show` says it."
    )
    if least > 1:
        sentence += (
            f" It takes nothing until {least} copies are in sync: start others, with empty folders if theirs are lost, "
            f"or go on with one copy by `evenq broker set-min-in-sync {done.group.broker_name} 1 --endpoint "
            f"{options.endpoint}`."
        )
    return Page(facts=_facts(done), sentence=sentence)


def _facts(plan: UncleanPlanView) -> dict[str, Scalar | list[str]]:
    election = plan.election
    return {
        "broker": plan.group.broker_name,
        "epoch": plan.group.epoch if election is None else election.epoch,
        "leader": plan.group.leader if election is None else election.copy,
        "suggested": plan.suggested,
        "refusal": plan.refusal,
        "done": election is not None,
        "log_end": None if election is None else election.log_end,
        "lost_copies": [str(one.copy) for one in plan.lost],
    }


def _end(copy: BrokerCopyView | None) -> str:
    return f"byte {copy.log_end:,}" if copy is not None and copy.log_end is not None else "the end"
