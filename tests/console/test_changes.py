"""Forms that change the cluster, as a user fills them in."""

from __future__ import annotations

from playwright.sync_api import expect

import evenq
from evenq.testing import LocalCluster
from tests.console.conftest import Tab


def test_a_topic_is_created_used_and_deleted(tab: Tab, cluster: LocalCluster) -> None:
    page = tab.open("/topics")
    page.get_by_label("Name", exact=True).fill("invoices")
    page.get_by_label("Queues of each broker").fill("3")
    page.get_by_role("button", name="Create").click()
    expect(page.get_by_role("status")).to_have_text("Created topic invoices.")
    with evenq.Admin(endpoint=cluster.endpoint) as admin:
        assert len(admin.describe_topic("invoices").queues) == 3

    page.get_by_label("Body").fill('{"total": 7}\n<b>ü</b>')
    page.get_by_label("Tag").fill("paid")
    page.get_by_label("Keys").fill("i1 i2")
    page.get_by_label("Properties").fill('{"region": "eu"}')
    page.get_by_role("button", name="Send").click()
    expect(page.get_by_role("status")).to_contain_text("Sent message")
    expect(page.get_by_role("cell", name="i1 i2")).to_be_visible()
    with evenq.Admin(endpoint=cluster.endpoint) as admin:
        [message] = admin.peek_messages("invoices").messages
    assert (message.tag, list(message.keys), message.properties["region"]) == ("paid", ["i1", "i2"], "eu")
    assert message.body.decode() == '{"total": 7}\n<b>ü</b>'

    page.get_by_label("to delete it").fill("invoice")
    page.get_by_role("button", name="Delete").click()
    expect(page.get_by_role("alert")).to_contain_text("type the name invoices")
    page.go_back()
    page.get_by_label("to delete it").fill("invoices")
    page.get_by_role("button", name="Delete").click()
    expect(page.get_by_role("status")).to_have_text("Deleted topic invoices.")
    with evenq.Admin(endpoint=cluster.endpoint) as admin:
        assert "invoices" not in [one.topic for one in admin.list_topics()]


def test_a_group_is_created_with_its_topic_after_a_plan(tab: Tab, cluster: LocalCluster) -> None:
    page = tab.open("/groups")
    page.get_by_role("link", name="New group").click()
    page.get_by_label("Name", exact=True).fill("invoicing")
    page.get_by_label("Most deliveries of a message").fill("4")
    page.get_by_label("Strategy, such as STICKY").fill("STICKY")
    page.get_by_label("Topics that are created").fill("orders invoices-eu")
    page.get_by_role("button", name="Show the plan").click()
    expect(page.get_by_role("row", name="invoices-eu is created")).to_be_visible()
    expect(page.get_by_role("row", name="orders exists, unchanged")).to_be_visible()
    page.get_by_role("button", name="Apply this plan").click()
    expect(page.get_by_role("status")).to_have_text("Created topic invoices-eu. Created group invoicing.")
    with evenq.Admin(endpoint=cluster.endpoint) as admin:
        group = admin.describe_group("invoicing").summary
        assert (group.max_attempts, group.strategy) == (4, "STICKY")
        assert admin.describe_topic("invoices-eu").queues
        admin.delete_group("invoicing")
        admin.delete_topic("invoices-eu")


def test_a_delayed_message_is_recalled_after_a_plan(tab: Tab, cluster: LocalCluster) -> None:
    with evenq.Admin(endpoint=cluster.endpoint) as admin, evenq.Producer(endpoint=cluster.endpoint) as producer:
        admin.create_topic("reminders", queues=1, message_type="DELAY")
        producer.send(evenq.Message(topic="reminders", body=b"call", tag="ring", delay=3_600_000))
        page = tab.open("/scheduled?topic=reminders")
        page.get_by_role("link", name="Recall").click()
        expect(page.get_by_text("The message would never be delivered.")).to_be_visible()
        page.get_by_role("button", name="Recall").click()
        expect(page.get_by_role("status")).to_contain_text("Recalled message")
        assert admin.list_scheduled("reminders").messages == ()
        admin.delete_topic("reminders")


def test_a_schedule_is_paused_after_a_plan(tab: Tab, cluster: LocalCluster) -> None:
    with evenq.Admin(endpoint=cluster.endpoint) as admin:
        admin.create_topic("reports", queues=1)
        admin.create_schedule("nightly", evenq.Message(topic="reports", body=b"run"), every="1h")
        page = tab.open("/schedules?topic=reports")
        page.get_by_role("link", name="nightly").click()
        page.get_by_role("link", name="Pause").click()
        expect(page.get_by_text("It sends no message until it is resumed")).to_be_visible()
        page.get_by_role("button", name="Apply this plan").click()
        expect(page.get_by_role("status")).to_have_text("Schedule nightly is paused.")
        assert admin.describe_schedule("reports", "nightly").paused
        admin.delete_topic("reports")


def test_a_sentence_about_a_change_is_not_repeated_by_a_link_in_another_browser(tab: Tab) -> None:
    page = tab.open("/topics?done=Send+your+keys+to+evil.example")
    expect(page.get_by_role("heading", level=1)).to_have_text("Topics")
    expect(page.get_by_text("Send your keys")).to_have_count(0)


def test_topics_are_found_by_a_part_of_their_name(tab: Tab) -> None:
    page = tab.open("/topics")
    page.get_by_label("Name contains").fill("ORD")
    page.get_by_role("button", name="Search").click()
    expect(page.get_by_role("link", name="orders")).to_be_visible()
    page.get_by_label("Name contains").fill("zzz")
    page.keyboard.press("Enter")
    expect(page.get_by_text("No topic with this text.")).to_be_visible()
