"""`evenq broker elect-unclean`: prints the loss if a copy that is not in sync led; with consent, elects it."""

from __future__ import annotations

import argparse

from evenq.cli.admin import with_admin
from evenq.cli.broker.copies import copies_listing
from evenq.cli.output import Column, Listing, Page, Scalar, print_page
from evenq.client.async_admin import Admin
from evenq.client.core.admin.broker_group_views import BrokerCopyView, UncleanPlanView
from evenq.errors import PreconditionFailed

_LOST = (
    Column("copy", "copy", "number"),
    Column("store_id", "store"),
    Column("away_since_ms", "away since", "time"),
    Column("answers", "answers with another store"),
)
_LOST_FOR_GOOD, _NOT_LOST = "Records that only these copies have are lost", "The group record lets these copies lead"
_ENDS = (
    Column("copy", "copy", "number"),
    Column("log_end", "log end", "number"),
    Column("log_epoch", "epoch of its last record", "number"),
    Column("committed_end", "known committed end", "number"),
    Column("suggested", "has most"),
)


def elect_unclean(options: argparse.Namespace) -> None:
    acts = options.accept_data_loss and options.copy is not None

    async def look(admin: Admin) -> UncleanPlanView:
        return await admin.plan_unclean_election(
            options.name, copy=options.copy, reason=options.reason, despite_better=options.despite_better
        )

    plan = with_admin(options, look)
    if not (acts and options.output.for_programs):
        print_page(_plan_page(plan, options), options.output)
    if options.accept_data_loss and options.copy is None:
        raise PreconditionFailed("name the copy that is to lead: --copy N, a copy that answers")
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
    print_page(_done_page(done, options), options.output)


def _plan_page(plan: UncleanPlanView, options: argparse.Namespace) -> Page:
    here = {one.copy for one in plan.group.copies if one.may_lead}  # answered with the store that the record names
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
            Listing(key="ends", columns=_ENDS, rows=ends, title="Logs of the copies that answer"),
        ],
        sentence=_plan_sentence(plan, options),
    )


def _plan_sentence(plan: UncleanPlanView, options: argparse.Namespace) -> str:
    group = f"broker group {plan.group.broker_name}"
    if plan.refusal:
        return f"No unclean election in {group}: {plan.refusal}."
    copy = options.copy if options.copy is not None else plan.suggested
    if copy is None:
        return f"No unclean election in {group}: no copy that could lead answers."
    known = next((one for one in plan.group.copies if one.copy == copy), None)
    sentence = (
        f"If copy {copy} becomes leader of {group}, all records committed after {_end(known)} of its log are lost: "
        "messages, acknowledgements and progress of consumers. The amount is unknown. A copy that returns later with "
        "more records is cut. Copies that run but are not reached from here may still acknowledge until they read "
        "the new record."
    )
    if not options.accept_data_loss:
        sentence += (
            f" Nothing was changed. If the copies below are gone for good: add --copy {copy} --accept-data-loss."
        )
    return sentence


def _done_page(done: UncleanPlanView, options: argparse.Namespace) -> Page:
    election = done.election
    if election is None:  # possible with a newer server
        return Page(facts=_facts(done), sentence="Nothing was changed.")
    least = done.group.in_sync_min
    sentence = (
        f"Copy {election.copy} leads broker group {done.group.broker_name} from epoch {election.epoch} on, with its "
        f"log up to {election.log_end:,}. The group record keeps this election; `evenq cluster show` shows it."
    )
    if least > 1:
        sentence += (
            f" It accepts no messages until {least} copies are in sync: start others, with empty folders if theirs are "
            f"lost, or continue with one copy by `evenq broker set-min-in-sync {done.group.broker_name} 1 --endpoint "
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
