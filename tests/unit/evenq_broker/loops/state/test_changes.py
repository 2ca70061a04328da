"""Who listens is notified of each change, in the order of registration."""

from evenq_broker.loops.state.changes import Changes


def test_listeners_hear_of_facts_in_the_order_they_came_in() -> None:
    changes, heard = Changes(), []
    changes.on_facts(lambda group, topic: heard.append(("first", group, topic)))
    changes.on_facts(lambda group, topic: heard.append(("second", group, topic)))
    changes.facts_changed(topic="t")
    changes.facts_changed(group="g")
    assert heard == [("first", "", "t"), ("second", "", "t"), ("first", "g", ""), ("second", "g", "")]


def test_routes_are_counted_always_and_told_only_of_topics_that_changed() -> None:
    changes, heard = Changes(), []
    changes.on_routes(lambda topics: heard.append(sorted(topics)))
    changes.routes_changed(())
    changes.routes_changed({"t", "a"})
    assert (changes.routes.count, heard) == (2, [["a", "t"]])
