"""The page that watches a live model, in a real browser, while data arrive. TRACECVR_SCREENSHOTS=DIR keeps pictures."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import pytest

from browsing import Watched
from livestore import SMALL, Made, finish, learnt, send, the_events
from test_service import GENEROUS, served
from tracecvr.base import registry
from tracecvr.learn.stream_learning import StreamLearning
from tracecvr.online.challengers.learners import Learners
from tracecvr.online.service.auth import Token, Tokens, new_token
from tracecvr.online.store.challenge import create

pytestmark = pytest.mark.browser

NOTHING = "\u2013"


def serves(page: Any, version: int) -> None:
    """Wait until the page says so. A function to wait for would be evaluated in the page, which forbids that."""
    page.locator("#what", has_text=f"version {version} serves").wait_for()


def figures(page: Any) -> list[list[str]]:
    """Clicks and metrics: as served and prequential, lately; of the version that serves; both so far."""
    return [row.locator("td.n").all_text_contents() for row in page.locator("#figures tr:has(td)").all()]


def in_view(page: Any, width: int) -> None:
    """Nothing of a table is cut, promote can be seen, zones are named, and calibration is drawn as a ratio."""
    tables = page.locator(".wide table").all()
    if width < 640:
        assert all(
            table.evaluate("one => one.parentElement.scrollWidth <= one.parentElement.clientWidth") for table in tables
        )
    for button in page.locator("#versions button").all():
        box = button.bounding_box()
        assert 0 <= box["x"] < box["x"] + box["width"] <= width
    assert "Dates are UTC." in page.text_content("#span")
    assert "learnt until, UTC" in page.text_content("#versions tr")
    ratio = page.locator("#charts figure", has_text="PCOC of recent").locator("line.level").bounding_box()["y"]
    box = page.locator("#charts figure", has_text="PCOC of recent").locator("svg").bounding_box()
    assert abs((ratio - box["y"]) / box["height"] - 0.46) < 0.03  # 1 is in the middle


@pytest.mark.parametrize(("width", "scheme"), [(390, "light"), (390, "dark"), (1440, "light"), (1440, "dark")])
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
        assert len(page.query_selector_all("#charts svg")) == 6
        assert len(page.query_selector_all("#work svg")) == 2
        for drawn in page.query_selector_all(".charts svg"):
            assert drawn.get_attribute("aria-label")
            assert drawn.query_selector("path").bounding_box()["width"] > 50
        calibration = page.locator("#charts figure", has_text="PCOC of").all()
        assert [figure.locator("line.level").count() for figure in calibration] == [1, 1]
        dates = calibration[0].locator("svg text[text-anchor=middle]").all_text_contents()
        assert dates
        assert all(re.fullmatch(r"\d+ [A-Z][a-z]{2,3}(, \d\d:\d\d)?", text) for text in dates)
        assert page.evaluate("document.documentElement.scrollWidth") == width
        served_by_nobody, lately, _, so_far = figures(page)
        assert served_by_nobody[0] == "0"  # they were ingested
        assert served_by_nobody[1] == NOTHING
        assert int(so_far[0].replace(",", "")) > int(lately[0].replace(",", "")) > 300
        assert 0 < float(lately[1]) < 1
        assert lately[1:] != so_far[1:]
        page.click(f"button[aria-label='let version {intervals - 1} serve']")
        assert page.text_content("#asked") == f"Let version {intervals - 1} serve?"
        page.click("#no")
        page.wait_for_timeout(2500)  # a look later nothing has changed
        serves(page, intervals)
        page.click(f"button[aria-label='let version {intervals - 1} serve']")
        if folder := os.environ.get("TRACECVR_SCREENSHOTS"):
            page.screenshot(path=Path(folder) / f"question-{width}-{scheme}.png")
        page.click("#yes")
        serves(page, intervals - 1)
        page.click("#back")
        assert page.text_content("#yes") == "Roll back"
        page.click("#yes")
        serves(page, intervals - 2)
        page.click("#newest")
        page.click("#yes")
        serves(page, intervals)
        newest = page.locator("#versions tr:has(td)").first.locator("td").all_text_contents()
        assert newest[:2] == [str(intervals), "serves"]
        assert re.fullmatch(r"\d+ [A-Z][a-z]{2,3}, \d\d:\d\d", newest[2])
        assert 0 < float(newest[3]) < 1
        in_view(page, width)
        explained = page.locator("#words dt").all_text_contents()
        assert {"PCOC", "AUC", "NLL", "ECE", "CVR", "d_max", "prequential", "watermark"} <= set(explained)
        for word in page.query_selector_all("a.word"):
            assert len(word.get_attribute("title")) > 20
            assert page.query_selector(word.get_attribute("href")) is not None
        assert page.text_content("#theme") == ("Light" if scheme == "dark" else "Dark")
        page.click("#theme")
        assert page.text_content("#theme") == ("Dark" if scheme == "dark" else "Light")
        page.click("#theme")
        if folder := os.environ.get("TRACECVR_SCREENSHOTS"):
            page.screenshot(path=Path(folder) / f"page-{width}-{scheme}.png", full_page=True)
        assert watched.said == []
        assert all(asked.startswith((url, "data:")) for asked in watched.asked)
        watched.context.close()


def test_tiles_turn_to_a_warning(made: Made, browser: Any) -> None:
    """If twice as many conversions are predicted as come, and if none is expected of recent clicks."""
    store = made("vanilla")
    send(store, the_events()[:1200])
    learnt(store)

    def alter(route: Any) -> None:
        answer = route.fetch()
        status = answer.json()
        status["window"]["prequential"]["pcoc"] = 2.0
        status["recent"]["prequential"]["forecast"] = 0.0
        route.fulfill(response=answer, json=status)

    with served(store) as url:
        watched = Watched(browser, url, 390)
        page = watched.page
        page.wait_for_selector("#now .card")
        assert page.locator("#now .card.warn").count() == 0
        page.route("**/v1/status", alter)
        page.wait_for_selector("#now .card.warn")
        assert page.locator("#now .card.warn b").all_text_contents() == ["2.000", "0.0000"]
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


def made_up_history(*_: object) -> list[dict[str, Any]]:
    """Of a challenger that turns out to be better: no interval at first, then one that shrinks."""
    return [
        {"interval": n, "end": (n + 1) * 3600, "mean": -0.01 + 0.02 / n, "units": n, "clicks": 50 * n}
        | ({"low": None, "high": None} if n < 48 else {"low": -0.01 - 1 / n, "high": -0.01 + 1 / n})
        for n in range(1, 150)
    ]


@pytest.mark.parametrize(("width", "scheme"), [(390, "dark"), (1440, "light")])
def test_the_difference_of_a_challenger_is_drawn_with_its_interval(
    made: Made, browser: Any, width: int, scheme: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = made("vanilla")
    create(store, "other", (registry.get("method", "fnw")(**SMALL), (), StreamLearning()))
    with Learners(store) as learners:
        list(learners.all())
    monkeypatch.setattr("tracecvr.online.service.scoring.comparisons", made_up_history)
    with served(store) as url:
        watched = Watched(browser, url, width, scheme)
        page = watched.page
        page.wait_for_selector("#differences svg path.band")
        assert page.text_content("#differences figcaption b") == "other"
        assert page.text_content("#differences .keys b") == "-0.00987 (-0.01671 to -0.00329)"
        line, band = (page.locator(f"#differences path{kind}").bounding_box() for kind in (":not(.band)", ".band"))
        assert band["height"] > line["height"] > 0
        assert band["x"] > line["x"] + 50, "before there are 48 units, there is no interval"
        assert page.evaluate("document.documentElement.scrollWidth") == width
        if folder := os.environ.get("TRACECVR_SCREENSHOTS"):
            page.locator("#challengers").screenshot(path=Path(folder) / f"difference-{width}-{scheme}.png")
        assert watched.said == []
        watched.context.close()


def test_challengers_are_compared_and_promoted_after_a_question(made: Made, browser: Any) -> None:
    store = made("vanilla")
    create(store, "other", (registry.get("method", "fnw")(**SMALL), (), StreamLearning()))
    send(store, the_events()[:1600])
    with Learners(store) as learners:
        list(learners.all())
    with served(store) as url:
        watched = Watched(browser, url, 1440)
        page = watched.page
        page.wait_for_selector("#compared_models td")
        theirs, own = (
            row.locator("td").all_text_contents() for row in page.locator("#compared_models tr:has(td)").all()
        )
        assert theirs[0] == "other (fnw)"
        assert own[0] == "the store's own (vanilla)"
        assert theirs[4] == own[4] != "0"  # the same clicks
        assert len(page.query_selector_all("#differences svg path")) == 1  # too few clicks for an interval
        assert (theirs[1], own[1]) == ("promote", "serves")
        page.click("button[aria-label='let other serve']")
        assert page.text_content("#asked") == "Let other serve?"
        assert page.locator("#compared tr:has(td) td:first-child").all_text_contents() == ["other", "the store's own"]
        page.click("#no")
        page.click("button[aria-label='let other serve']")
        page.click("#yes")
        page.locator("#what", has_text="challenger other, version").wait_for()
        states = page.locator("#versions tr:has(td) td.act").all_text_contents()
        assert set(states) == {"promote"}, "no version of the store's own serves"
        if folder := os.environ.get("TRACECVR_SCREENSHOTS"):
            page.screenshot(path=Path(folder) / "challengers.png", full_page=True)
        page.click('button[aria-label="let the store\'s own model serve"]')
        page.click("#yes")
        page.locator("#what", has_text="vanilla, version").wait_for()
        assert watched.said == []
        watched.context.close()
