"""Tables and JSON of one answer."""

import json

from evenq.cli.output import Column, Listing, Page, print_page

COLUMNS = (Column("name", "name"), Column("count", "count", "number"), Column("at_ms", "at", "time"))
ROWS = [("or[der]s", 1234567, 0), ("jobs", 2, 1_700_000_000_000)]


def printed(page, capsys, *, as_json):
    print_page(page, as_json=as_json)
    return capsys.readouterr().out


def test_a_table_shows_all_rows_with_readable_numbers_and_times(capsys):
    text = printed(Page(facts={}, listings=[Listing(key="x", columns=COLUMNS, rows=ROWS)]), capsys, as_json=False)
    assert "or[der]s" in text
    assert "1,234,567" in text
    assert "2023-11-1" in text
    assert text.index("name") < text.index("count")


def test_a_page_of_one_listing_is_a_json_array(capsys):
    text = printed(Page(facts={}, listings=[Listing(key="x", columns=COLUMNS, rows=ROWS)]), capsys, as_json=True)
    assert json.loads(text)[0] == {"name": "or[der]s", "count": 1234567, "at_ms": 0}


def test_a_page_of_facts_and_listings_is_one_json_object(capsys):
    page = Page(facts={"a": True, "b": ["x"]}, listings=[Listing(key="rows", columns=COLUMNS, rows=[])], sentence="Hi.")
    assert json.loads(printed(page, capsys, as_json=True)) == {"a": True, "b": ["x"], "rows": []}


def test_facts_are_read_by_people_without_brackets_and_quotes(capsys):
    text = printed(Page(facts={"max_attempts": 17, "ordered": False, "groups": []}), capsys, as_json=False)
    assert text == "max attempts  17\nordered       no\ngroups        -\n"


def test_an_empty_listing_says_so(capsys):
    listing = Listing(key="x", columns=COLUMNS, rows=[], title="Members", empty="no member reads now")
    assert printed(Page(facts={}, listings=[listing]), capsys, as_json=False) == "Members: no member reads now\n"


def test_a_sentence_stands_instead_of_the_facts(capsys):
    page = Page(facts={"topic": "t"}, sentence="Topic t [x] has 4 queues.")
    assert printed(page, capsys, as_json=False) == "Topic t [x] has 4 queues.\n"
