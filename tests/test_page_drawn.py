"""The page that watches a live model, in a real browser, while data arrive. TRACECVR_SCREENSHOTS=DIR keeps pictures."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from livestore import Made, finish, learnt, send, the_events
from test_service import GENEROUS, served
from tracecvr.online.service.auth import Token, Tokens, new_token

pytestmark = pytest.mark.browser


class Watched:
    """A page with all that it said and asked for."""

    def __init__(self, browser: Any, url: str, width: int, scheme: str = "light") -> None:
        self.context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
        self.page = self.context.new_page()
        self.said: list[str] = []
        self.asked: list[str] = []
        self.page.on("console", lambda message: self.said.append(message.text))
        self.page.on("pageerror", lambda error: self.said.append(str(error)))
        self.page.on("request", lambda request: self.asked.append(request.url))
        self.page.goto(url)


def serves(page: Any, version: int) -> None:
    """Wait until the page says so."""
    page.wait_for_function(f"document.getElementById('what').textContent.includes('version {version} serves')")


@pytest.mark.parametrize(("width", "scheme"), [(390, "dark"), (1440, "light")])
def test_it_shows_what_happens_without_reloading(made: Made, browser: Any, width: int, scheme: str) -> None:
    store = made("trace")
    send(store, the_events()[:1200])
    learnt(store)
    with served(store) as url:
        watched = Watched(browser, url, width, scheme)
        page = watched.page
        page.wait_for_selector("#charts svg path")
        before = page.text_content("#what")
        send(store, the_events()[1200:])
        finish(store)
        _, intervals = learnt(store)
        serves(page, intervals)
        assert page.text_content("#what") != before
        assert len(page.query_selector_all("#charts svg")) == 8
        for drawn in page.query_selector_all("#charts svg"):
            assert drawn.get_attribute("aria-label")
            assert drawn.query_selector("path").bounding_box()["width"] > 50
        assert page.evaluate("document.documentElement.scrollWidth") == width
        page.click(f"button[aria-label='let version {intervals - 1} serve']")
        page.wait_for_function(
            f"document.getElementById('what').textContent.includes('version {intervals - 1} serves')"
        )
        page.click("#versions th button")
        serves(page, intervals)
        if folder := os.environ.get("TRACECVR_SCREENSHOTS"):
            page.screenshot(path=Path(folder) / f"page-{width}-{scheme}.png", full_page=True)
        assert watched.said == []
        assert all(asked.startswith((url, "data:")) for asked in watched.asked)
        watched.context.close()


def test_it_asks_for_a_token_and_keeps_it_to_itself(made: Made, browser: Any) -> None:
    store, (token, digest) = made("vanilla"), new_token()
    learnt(store)
    with served(store, Tokens((Token("me", digest, frozenset(["admin"])),)), GENEROUS) as url:
        page = Watched(browser, url, 800).page
        page.wait_for_selector("#ask:not([hidden])")
        assert not page.is_visible("#body")
        page.fill("#token", token)
        page.keyboard.press("Enter")
        page.wait_for_selector("#body:not([hidden])")
        assert token not in page.content()
        assert token not in page.url
