"""Pages of messages, against a broker in this process."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from html import unescape
from typing import Any

import pytest
from google.protobuf import descriptor_pb2

import evenq
from evenq import aio
from evenq.console.bodies import SHOWN_BYTES
from evenq.console.pages import ROWS
from tests.unit.evenq.console.console_site import Site, token


def body_of(page: str) -> str:
    found = re.search(r'<pre [^>]*aria-label="Body">(.*?)</pre>', page, re.DOTALL)
    return unescape(found[1]) if found else ""


def field_of(page: str, name: str) -> str:
    """Returns the value of a field as a browser has it: the first newline of a text area is not part of it."""
    found = re.search(rf'name="{name}"[^>]*value="([^"]*)"', page)
    if found is None:
        found = re.search(rf'<textarea name="{name}"[^>]*>\n(.*?)</textarea>', page, re.DOTALL)
    assert found is not None, name
    return unescape(found[1])


# ---------------------------------------------------------------------------------------------------- search


async def test_a_message_is_found_by_its_id_and_the_search_leads_to_its_page(site: Site) -> None:
    path = await site.send(b"hello")
    [found] = (await site.admin.peek_messages("t")).messages
    for topic in ("", "&topic=t"):
        answer = await site.browser.get(f"/messages?id={found.message_id}{topic}")
        assert (answer.status_code, answer.headers["location"]) == (303, path)
    assert "nothing is stored (any more)" in await site.get("/messages?id=nothing", 404)


@pytest.mark.parametrize("order", ["newest", "oldest"])
@pytest.mark.parametrize("key", ["", "k"])
async def test_every_message_is_on_one_page_of_a_search_in_its_order(site: Site, order: str, key: str) -> None:
    for number in range(2 * ROWS + 3):
        await site.send(f"body-{number:03}".encode(), keys=("k",))
    shown: list[str] = []
    path = f"/messages?topic=t&order={order}&key={key}"
    pages = 0
    while pages < 9:
        pages += 1
        page = await site.get(path)
        shown += re.findall(r">(body-\d+)", page)
        more = re.search(r'href="([^"]*)" rel="next"', page)
        if more is None:
            break
        path = unescape(more[1])
    assert pages == 3
    assert sorted(shown) == [f"body-{number:03}" for number in range(2 * ROWS + 3)]
    first, last = int(shown[0][-3:]), int(shown[-1][-3:])  # messages of one millisecond are sorted by queue
    assert first > last + 90 if order == "newest" else last > first + 90


async def test_a_search_is_limited_by_time_queue_and_offset(site: Site) -> None:
    path = await site.send(b"one")
    queue, offset = path.split("/")[-2:]
    assert ">one" in await site.get(f"/messages?topic=t&queue=a/{queue}&offset={offset}&order=oldest")
    assert ">one" in await site.get("/messages?topic=t&begin=1h")
    assert ">one" not in await site.get("/messages?topic=t&end=1h")
    assert ">one" not in await site.get("/messages?topic=t&end=2020-01-01T00:00")
    assert "No message matches" in await site.get(f"/messages?topic=t&queue=a/{1 - int(queue)}")


@pytest.mark.parametrize(
    ("query", "status"),
    [
        ("topic=nothing", 404),
        ("topic=t&begin=yesterday", 400),
        ("topic=t&begin=99999999999999999999", 400),
        ("topic=t&queue=a", 400),
        ("topic=t&queue=a/-1", 400),
        ("topic=t&offset=3", 400),
        ("topic=t&queue=a/0&offset=99999999999999999999999", 400),
        ("topic=t&last=1~2", 400),
        ("topic=t&positions=a~1.2.3", 400),
        ("topic=t&same=901", 400),
    ],
)
async def test_a_search_that_is_not_valid_names_the_fault(site: Site, query: str, status: int) -> None:
    assert 'role="alert"' in await site.get(f"/messages?{query}", status)


async def test_a_broker_that_is_silent_is_named(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    await site.send(b"here")
    real = aio.Admin.find_messages

    async def partly(*given: Any, **options: Any) -> Any:
        return replace(await real(*given, **options), silent=("b-away",))

    monkeypatch.setattr(aio.Admin, "find_messages", partly)
    assert "No answer from b-away" in await site.get("/messages?topic=t")


# ---------------------------------------------------------------------------------------------------- one message


async def test_a_message_shows_its_fields_properties_and_times(site: Site) -> None:
    await site.admin.create_topic("late", message_type="DELAY", queues=1)
    path = await site.send(b'{"a": 1}', tag="paid", keys=("k1", "k2"), properties={"region": "eu"})
    page = await site.get(path)
    for text in (">paid<", ">k1</a>", ">k2</a>", ">region<", ">eu<", "immediately", "Next in the queue"):
        assert text in page
    sent = await site.producer.send(evenq.Message(topic="late", body=b"later", delay=1))
    assert sent.message_id


@pytest.mark.parametrize(
    "path", ["nothing/a/0/0", "t/b/0/0", "t/a/0/99", "t/a/x/0", "t/a/0/-1", f"t/a/0/{'9' * 30}", f"t/a/{1 << 40}/0"]
)
async def test_a_message_that_is_not_stored_is_a_page_with_404(site: Site, path: str) -> None:
    assert "Topics" in await site.get(f"/messages/{path}", 404)


async def test_json_is_indented_as_it_was_written(site: Site) -> None:
    page = await site.get(await site.send(b'{"n": 1.00000000000000000000001, "n": [], "o": {"p": [1, "a,b"]}}'))
    assert body_of(page) == (
        '{\n  "n": 1.00000000000000000000001,\n  "n": [],\n  "o": {\n    "p": [\n      1,\n      "a,b"\n    ]\n  }\n}'
    )


@pytest.mark.parametrize(
    ("body", "note"),
    [
        (b"[" * 100_000 + b"]" * 100_000, "nested too deeply"),
        (b'{"a": ', "is not JSON"),
        (b"[\xff]", "not UTF-8"),
        (b"[" + b"1" * 5_000 + b"]", ""),
        (b"[" + b"1," * 700_000 + b"1]", "is checked up to"),
        (b"[1]" * 100, "is not JSON"),
    ],
)
async def test_json_that_cannot_be_checked_is_shown_as_it_is(site: Site, body: bytes, note: str) -> None:
    page = await site.get(f"{await site.send(body)}?form=json")
    assert note in page
    assert body_of(page)[:1] in {"[", "{", "0"}


async def test_a_large_body_is_cut_and_the_page_says_how_much_is_hidden(site: Site) -> None:
    body = b"[" + b'"\xc3\xa4",' * 100_000 + b"1]"
    path = await site.send(body)
    for form, most in (("json", SHOWN_BYTES), ("text", SHOWN_BYTES), ("hex", SHOWN_BYTES // 16 * 79)):
        page = await site.get(f"{path}?form={form}")
        hidden = re.search(r"<p>([\d\u202f]+) of ([\d\u202f]+) bytes are not shown", page)
        assert hidden is not None
        assert len(body) - SHOWN_BYTES <= int(hidden[1].replace("\u202f", "")) < len(body)
        assert int(hidden[2].replace("\u202f", "")) == len(body)
        assert 0 < len(body_of(page)) <= most
    whole = await site.browser.get(f"{path}/body")
    assert whole.content == body
    assert whole.headers["content-type"] == "application/octet-stream"
    assert whole.headers["content-disposition"].startswith("attachment; filename=")


async def test_bytes_that_are_not_text_are_shown_in_hexadecimal(site: Site) -> None:
    path = await site.send(b"\xff\x00ab")
    assert body_of(await site.get(path)).startswith("00000000  ff 00 61 62 ")
    assert body_of(await site.get(f"{path}?form=text")) == "\\xff\\x00ab"


async def test_nothing_of_a_message_becomes_markup_or_moves_the_text(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad = '<script>x</script>"\u202egnp\x1b[31m\x07\u200b'
    path = await site.send(bad.encode(), properties={"p": "v"})
    real = aio.Admin.get_message

    async def hostile(*given: Any, **options: Any) -> Any:
        return replace(
            await real(*given, **options),
            tag=bad,
            keys=(bad,) * 300,
            message_group=bad,
            lite_topic=bad,
            born_host=bad,
            message_id=bad,
            properties={bad: bad, "long": "x" * 100_000} | {f"p{number}": "v" for number in range(10_000)},
            born_ms=-(1 << 62),
            store_ms=1 << 62,
        )

    monkeypatch.setattr(aio.Admin, "get_message", hostile)
    for address in (path, f"{path}?form=hex", f"{path}/resend"):
        page = await site.get(address)
        assert "<script>x" not in page
        if "resend" not in address:
            assert not re.search("[\u202e\x1b\x07\u200b]", page)
            assert "9\u202f802 more properties are not shown" in page
            assert len(page) < 400_000


async def test_the_trace_is_a_time_line_of_each_group(site: Site) -> None:
    path = await site.send(b"traced", tag="a")
    assert "No group has read this topic" in await site.get(path)
    async with aio.SimpleConsumer(
        group="g", subscriptions={"t": "*"}, endpoint="a:8081", context=site.context, start_from="FIRST"
    ) as consumer:
        messages: list[Any] = []
        while not messages:
            messages = await consumer.receive(1, invisible_ms=30_000)
        page = await site.get(path)
        assert "delivered, not acknowledged" in page
        assert "delivered, attempt 1, invisible until" in page
        assert consumer.client_id in page
        await consumer.ack(messages[0])
    page = await site.get(f"{path}?group=g")
    assert ">finished<" in page
    assert re.findall(r"<td>(stored|delivered|acknowledged)", page) == ["stored", "delivered", "acknowledged"]


# ---------------------------------------------------------------------------------------------------- protobuf


def descriptors() -> descriptor_pb2.FileDescriptorSet:
    """`shop.Order`: a text, a number, and an order inside."""
    files = descriptor_pb2.FileDescriptorSet()
    file = files.file.add(name="shop.proto", package="shop", syntax="proto3")
    kind = file.message_type.add(name="Order")
    kind.field.add(name="name", number=1, type=9, label=1)
    kind.field.add(name="amount", number=2, type=5, label=1)
    kind.field.add(name="inner", number=3, type=11, label=3, type_name=".shop.Order")
    return files


async def test_a_body_is_decoded_by_an_uploaded_descriptor_set(site: Site) -> None:
    path = await site.send(b"\x0a\x03a\x1bb\x10\x07\x1a\x02\x10\x09")
    assert "descriptor set" in (await site.get(f"{path}?form=protobuf")).lower()
    files = {"descriptors": ("shop.pb", descriptors().SerializeToString())}
    page = await site.post(f"{path}/protobuf", {"message": "shop.Order"}, status=200, files=files)
    assert body_of(page.text) == 'name: "a\\033b"\namount: 7\ninner {\n  amount: 9\n}\n'


@pytest.mark.parametrize(
    ("body", "file", "name", "fault"),
    [
        (b"\x0a\x01a", b"garbage", "shop.Order", "not a FileDescriptorSet"),
        (b"\x0a\x01a", b"", "shop.Order", "FileDescriptorSet"),
        (b"\x0a\x01a", None, "shop.Invoice", "it has shop.Order"),
        (b"\x0a\x01a", None, "", "names no message type"),
        (b"\x0a\xff", None, "shop.Order", "not a valid shop.Order"),
        (b"\x0a\x01a", b"\0" * ((1 << 20) + 1), "shop.Order", "decoded up to"),
        (b"x" * ((512 << 10) + 1), None, "shop.Order", "decoded up to"),
    ],
)
async def test_a_bad_descriptor_set_or_body_is_a_clear_error(
    site: Site, body: bytes, file: bytes | None, name: str, fault: str
) -> None:
    content = descriptors().SerializeToString() if file is None else file
    path = await site.send(body)
    files = {"descriptors": ("shop.pb", content)}
    page = await site.post(f"{path}/protobuf", {"message": name}, status=400, files=files)
    assert fault in page.text


async def test_a_missing_import_and_a_missing_file_are_clear_errors(site: Site) -> None:
    path = await site.send(b"\x0a\x01a")
    files = descriptors()
    files.file[0].dependency.append("other.proto")
    upload = {"descriptors": ("shop.pb", files.SerializeToString())}
    page = await site.post(f"{path}/protobuf", {"message": "shop.Order"}, status=400, files=upload)
    assert "--include_imports" in page.text
    page = await site.post(f"{path}/protobuf", {"message": "shop.Order"}, status=400)
    assert "has no file" in page.text


async def test_bombs_of_protobuf_end_at_a_limit(site: Site) -> None:
    nested = b""
    for _ in range(2_000):
        size = len(nested)
        length = bytes([size]) if size < 128 else bytes([size & 127 | 128, size >> 7])
        nested = b"\x1a" + length + nested
        if len(nested) > 16_000:
            break
    files = {"descriptors": ("shop.pb", descriptors().SerializeToString())}
    path = await site.send(nested)
    await site.post(f"{path}/protobuf", {"message": "shop.Order"}, status=400, files=files)
    path = await site.send(b"\x1a\x00" * (200 << 10))
    page = await site.post(f"{path}/protobuf", {"message": "shop.Order"}, status=200, files=files)
    assert len(body_of(page.text)) <= SHOWN_BYTES
    assert "Only the first" in page.text


# ---------------------------------------------------------------------------------------------------- resend


async def test_a_message_is_edited_and_sent_to_another_topic(site: Site) -> None:
    await site.admin.create_topic("other", queues=1)
    path = await site.send(b"line 1\nline 2", tag="a", keys=("k",), properties={"p": "\u202e"})
    form = await site.get(f"{path}/resend")
    fields = {
        name: field_of(form, name)
        for name in ("newline", "topic", "body", "tag", "keys", "properties", "message_group", "priority")
    }
    assert (fields["body"], fields["topic"], json.loads(fields["properties"])) == (
        "line 1\nline 2",
        "t",
        {"p": "\u202e"},
    )
    changed = {"topic": "other", "body": "line 1\r\nline 3"}
    answer = await site.post(f"{path}/resend", fields | changed)
    assert answer.headers["location"].startswith(path)
    [copy] = (await site.admin.peek_messages("other")).messages
    assert (copy.body, copy.tag, copy.keys, dict(copy.properties)) == (b"line 1\nline 3", "a", ("k",), {"p": "\u202e"})


@pytest.mark.parametrize("body", [b"\xff\xfe", b"a\rb\nc", b"a\0b", b"x" * (300 << 10)])
async def test_a_body_that_a_form_would_change_is_sent_as_it_is_stored(site: Site, body: bytes) -> None:
    path = await site.send(body)
    form = await site.get(f"{path}/resend")
    assert 'name="keeps_body" value="yes" checked' in form
    assert field_of(form, "body") == ""
    await site.post(f"{path}/resend", {"topic": "t", "keeps_body": "yes", "tag": "again"})
    [copy] = [one for one in (await site.admin.find_messages("t")).messages if one.tag == "again"]
    assert copy.body == body


async def test_lines_that_end_with_cr_lf_keep_their_ends(site: Site) -> None:
    path = await site.send(b"a\r\nb")
    form = await site.get(f"{path}/resend")
    await site.post(
        f"{path}/resend", {"topic": "t", "body": "a\r\nb", "newline": field_of(form, "newline"), "tag": "again"}
    )
    assert [one.body for one in (await site.admin.find_messages("t")).messages] == [b"a\r\nb"] * 2


async def test_an_edit_that_is_refused_keeps_what_was_entered(site: Site) -> None:
    path = await site.send(b"a")
    for fault in ({"properties": "{"}, {"tag": "a|b"}, {"topic": "no/topic"}, {"priority": "-1"}):
        fields = {"topic": "t", "body": "edited", "keys": "k", **fault}
        page = await site.post(f"{path}/resend", fields, status=400)
        assert field_of(page.text, "body") == "edited"
        assert all(field_of(page.text, name) == value for name, value in fault.items())
    assert len((await site.admin.find_messages("t")).messages) == 1


async def test_a_read_only_console_and_a_wrong_token_send_nothing(site: Site) -> None:
    path = await site.send(b"a")
    page = await site.browser.post(f"{path}/resend", data={"token": "wrong", "topic": "t", "body": "b"})
    assert page.status_code == 403
    reader = await site.visitor(allow_changes=False)
    form = {"token": await token(reader), "topic": "t", "body": "b"}
    assert (await reader.post(f"{path}/resend", data=form)).status_code == 403
    assert (await reader.get(f"{path}/resend")).status_code == 403
    assert "Edit and resend" not in (await reader.get(path)).text
    assert (await reader.post(f"{path}/protobuf", data={"token": "wrong"})).status_code == 403
    assert len((await site.admin.find_messages("t")).messages) == 1
