"""The report as it is seen: in a real browser, at two widths and in both themes, and its figures as PDF.

Chromium is found on PATH; `make browser` installs what is missing. With TRACECVR_SCREENSHOTS=DIR, pictures are kept.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from conftest import Call

import madeup
from browsing import Watched
from tracecvr.bench import report
from tracecvr.bench.outcome import Outcome
from tracecvr.bench.report import drawing
from tracecvr.bench.report.figures import make_figures

pytestmark = pytest.mark.browser

LAYOUTS = {
    "comparison": {},
    "changes": dict.fromkeys(("Pretrain", "DEFER"), "TRACE"),
}
LONG = "a label that is far longer than any that a sensible person would give to a row"


@pytest.fixture(scope="module", params=LAYOUTS)
def out(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = {**madeup.AUC, **{f"x{n}": (0.6 + n / 100,) * 3 for n in range(6)}, LONG: (0.6, 0.65, None)}
    folder = madeup.bench(tmp_path_factory.mktemp("report"), made, LAYOUTS[request.param], layout=request.param)
    report.write(folder)
    return folder


def report_in(browser: Any, path: Path, width: int, scheme: str) -> Watched:
    return Watched(browser, path.as_uri(), width, scheme, offline=True, reduced_motion="reduce")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1440])
def test_it_opens_offline_and_draws_everything(browser: Any, out: Path, width: int, scheme: str) -> None:
    opened = report_in(browser, out / "report.html", width, scheme)
    page = opened.page
    made = {figure.key: len(figure.panels) for figure in make_figures(Outcome(out))}
    assert len(made) == 4
    for key, count in made.items():
        panels = [one for one in page.query_selector_all(f"#{key} svg.plot") if one.is_visible()]
        assert len(panels) == count
        for panel in panels:
            box = panel.bounding_box()
            assert box["width"] > 100
            assert box["height"] > 60
            marks = panel.query_selector_all(".l, .m, .b")
            assert any(max((mark.bounding_box() or {"width": 0}).values()) > 2 for mark in marks), key
    assert page.evaluate("document.documentElement.scrollWidth") == width
    for details in page.query_selector_all("details"):  # tables behind figures scroll in boxes of their own
        details.evaluate("one => { one.open = true }")
    assert page.evaluate("document.documentElement.scrollWidth") == width
    assert opened.style("body", "background-color") == (
        "rgb(253, 253, 251)" if scheme == "light" else "rgb(22, 24, 26)"
    )
    assert opened.said == []
    assert [url for url in opened.asked if not url.startswith("data:")] == [(out / "report.html").as_uri()]
    if folder := os.environ.get("TRACECVR_SCREENSHOTS"):
        name = f"{Outcome(out).suite['layout']}-{width}-{scheme}.png"
        page.screenshot(path=Path(folder) / name, full_page=True)
    opened.context.close()


def test_text_can_be_read_against_its_ground(browser: Any, out: Path) -> None:
    """WCAG's contrast of 4.5 for text and 3 for lines, in both themes."""
    for scheme in ("light", "dark"):
        opened = report_in(browser, out / "report.html", 1440, scheme)
        names = ["--ink", "--soft", "--link", "--good", "--bad", *(f"--s{n}" for n in range(8)), "--bar", "--paper"]
        read = "names => names.map(n => getComputedStyle(document.documentElement).getPropertyValue(n).trim())"
        *colours, paper = (_luminance(colour) for colour in opened.page.evaluate(read, names))
        for name, colour in zip(names, colours, strict=False):
            low, high = sorted((colour, paper))
            text = name in ("--ink", "--soft", "--link", "--good", "--bad", "--s0")
            assert (high + 0.05) / (low + 0.05) >= (4.5 if text else 3.0), (scheme, name)
        opened.context.close()


def _luminance(colour: str) -> float:
    parts = [int(colour[n : n + 2], 16) / 255 for n in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_figures_as_files(tmp_path: Path, call: Call) -> None:
    out = madeup.bench(tmp_path)
    made = make_figures(Outcome(out))
    assert call("report", out, "--pdf", "--png", "--svg") == 0
    names = {path.name for path in (out / "figures").iterdir()}
    assert names == {f"{figure.key}.{kind}" for figure in made for kind in ("pdf", "png", "svg")}
    openings = {"pdf": b"%PDF", "png": b"\x89PNG", "svg": b"<svg"}
    for kind, opening in openings.items():
        path = out / "figures" / f"{made[0].key}.{kind}"
        before = path.read_bytes()
        assert before.startswith(opening)
        drawing.save(made[:1], out / "figures", [kind])
        assert kind == "pdf" or path.read_bytes() == before


def test_a_browser_reads_the_files(tmp_path: Path, browser: Any, call: Call) -> None:
    """PNG at one and a half times the size of the SVG, and nothing of the latter outside its box."""
    out = madeup.bench(tmp_path, {**madeup.AUC, LONG: (0.6, 0.65, 0.63)})
    assert call("report", out, "--png", "--svg") == 0
    for figure in make_figures(Outcome(out)):
        page = report_in(browser, out / "figures" / f"{figure.key}.svg", 1440, "light").page
        box = page.evaluate("(({width, height}) => [width, height])(document.documentElement.viewBox.baseVal)")
        ends = page.evaluate("[...document.querySelectorAll('text')].map(t => t.getBoundingClientRect().right)")
        assert max(ends) <= box[0], figure.key
        page.goto((out / "figures" / f"{figure.key}.png").as_uri())
        size = page.evaluate("[document.images[0].naturalWidth, document.images[0].naturalHeight]")
        assert size == pytest.approx([1.5 * side for side in box], abs=1.5)
        page.context.close()
