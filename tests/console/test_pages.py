"""Each page of the console in Chromium: it loads, it can be used with a screen reader, and it is the picture of the docs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from playwright.sync_api import expect

from tests.console.conftest import PICTURES, Tab
from tests.console.pages import PAGES, ConsolePage

NAMES = [page.name for page in PAGES]
SCHEMES = ("light", "dark")
WIDTHS = (1280, 390)


@pytest.mark.parametrize("shown", PAGES, ids=NAMES)
def test_a_page_loads_from_this_host_alone_and_without_an_error(tab: Tab, shown: ConsolePage) -> None:
    answer = tab.page.goto(tab.url + shown.path, wait_until="networkidle")
    assert answer is not None
    assert answer.status == shown.status
    expect(tab.page.get_by_role("heading", level=1)).to_have_text(shown.heading)
    assert len(tab.refused) == (shown.status != 200)
    assert tab.page.evaluate("typeof htmx + typeof uPlot") == "objectfunction"


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("shown", PAGES, ids=NAMES)
def test_a_page_has_no_serious_fault_for_a_screen_reader(
    new_tab: Callable[..., Tab], console: str, axe: str, shown: ConsolePage, scheme: str
) -> None:
    tab = new_tab(console, color_scheme=scheme)
    for width in WIDTHS:
        tab.page.set_viewport_size({"width": width, "height": 800})
        tab.open(shown.path)
        tab.page.evaluate(axe)
        found: dict[str, Any] = tab.page.evaluate("axe.run(document, {resultTypes: ['violations']})")
        assert [_sentence(one) for one in found["violations"] if one["impact"] in ("serious", "critical")] == []
        assert len(found["passes"]) > 5, "it looked"


def _sentence(fault: dict[str, Any]) -> str:
    first = fault["nodes"][0]
    return f"{fault['impact']} {fault['id']}: {first['html'][:150]} {first['failureSummary']}"


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("shown", PAGES, ids=NAMES)
def test_a_page_fits_a_screen_and_a_phone(
    new_tab: Callable[..., Tab], console: str, shown: ConsolePage, scheme: str
) -> None:
    """Only tables may be wider than the screen; they scroll by themselves."""
    PICTURES.mkdir(parents=True, exist_ok=True)
    for width in WIDTHS:
        tab = new_tab(console, color_scheme=scheme, viewport={"width": width, "height": 800})
        page = tab.open(shown.path)
        page.screenshot(path=PICTURES / f"{shown.name}-{scheme}-{width}.png", full_page=True)
        assert page.evaluate("document.documentElement.scrollWidth") <= width
