"""The pages of the console that are tested as a whole. A new page is a row here."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ConsolePage:
    name: str
    """Also that of its picture."""
    path: str
    heading: str
    status: int = 200


PAGES = (
    ConsolePage("overview", "/", "Overview"),
    ConsolePage("topics", "/topics", "Topics"),
    ConsolePage("topic", "/topics/orders", "orders"),
    ConsolePage("groups", "/groups", "Groups"),
    ConsolePage("group", "/groups/billing", "billing"),
    ConsolePage("why", "/groups/billing?tab=why", "billing"),
    ConsolePage("film", "/groups/billing?tab=film", "billing"),
    ConsolePage("settings", "/groups/billing?tab=settings", "billing"),
    ConsolePage("new-group", "/new-group", "New group"),
    ConsolePage("new-group-plan", "/new-group/plan?group=audit&topics=orders+logs&strategy=STICKY", "Plan for audit"),
    ConsolePage("topic-plan", "/topic-plan?change=scale&topic=orders&queues=8", "Plan for orders"),
    ConsolePage("doctor", "/groups/billing?tab=doctor", "billing"),
    ConsolePage("simulate", "/groups/billing?tab=simulate", "billing"),
    ConsolePage("move", "/groups/billing?tab=move", "billing"),
    ConsolePage("messages", "/messages?topic=orders", "Messages"),
    ConsolePage("scheduled", "/scheduled", "Scheduled"),
    ConsolePage("schedules", "/schedules", "Recurring messages"),
    ConsolePage("transactions", "/transactions", "Transactions"),
    ConsolePage("dead-letters", "/dead-letters", "Dead letters"),
    ConsolePage("clients", "/clients", "Clients"),
    ConsolePage("rights", "/rights", "Rights"),
    ConsolePage("login", "/login", "Sign in"),
    ConsolePage("error", "/topics/none", "Topic not found", status=404),
    ConsolePage("no-page", "/none", "Page not found", status=404),
)
