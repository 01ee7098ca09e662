"""The report of a bench: its numbers are the bench's, its words are true, and it stands alone."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from dataclasses import asdict
from html import unescape
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from conftest import Call
from markupsafe import escape

import madeup
from tracecvr.base.config import DAY, HOUR
from tracecvr.base.files import read_json, write_json
from tracecvr.base.metrics import evaluate, probability
from tracecvr.bench import report
from tracecvr.bench.outcome import Outcome
from tracecvr.bench.report import drawing
from tracecvr.bench.report.drawing import Axis, Bar, Bars, Chart, Series, light_colours
from tracecvr.bench.report.figures import by_day, make_figures, runs_over_time
from tracecvr.bench.report.sentences import summarise


def page(out: Path) -> str:
    return report.write(out)[0].read_text(encoding="utf-8")


def words(out: Path) -> str:
    return "\n".join(f"{one.verdict}: {one.text}" for one in summarise(Outcome(out)))


def row(text: str, name: str) -> list[str]:
    """The first row of the page's tables that starts with a name; data of figures are no tables."""
    tables = text[text.index('<section id="tables">') :]
    match = re.search(rf'<tr[^>]*><th scope="row">{re.escape(name)}</th>(.*?)</tr>', tables)
    assert match is not None
    return [unescape(re.sub("<.*?>", "", place)) for place in re.findall("<td>(.*?)</td>", match[1])]


# The page.


def test_its_numbers_are_those_of_the_results(tmp_path: Path) -> None:
    text = page(madeup.bench(tmp_path))
    assert row(text, "TRACE")[:3] == ["0.7967 ± 0.0153", "0.4033 ± 0.0153", "0.1033 ± 0.0153"]
    assert '<tr class="ours"><th scope="row">TRACE</th><td><b>0.7967' in text
    assert "<u>0.7800 ± 0.0200</u>" in text
    assert "1,000" in text  # clicks


def test_how_far_each_is_from_the_bound_comes_first(tmp_path: Path) -> None:
    """Of all figures, shortest distance first, below the sentences that say what came out."""
    text = page(madeup.bench(tmp_path))
    sections = re.findall(r'<section id="([\w-]+)">', text)
    assert sections[:2] == ["summary", "distance"]
    assert sections[-3:] == ["tables", "words", "setup"]
    sentence = "Use TRACE: its NLL, 0.4033, is 0.0167 lower than that of the next, DEFER. That is statistically "
    places = [sentence, "conversions for each observed one (PCOC)", "A run of TRACE takes "]
    order = [text.index(part) for part in (*places, 'id="distance"')]
    assert order == sorted(order)
    made = next(figure for figure in make_figures(Outcome(tmp_path)) if figure.key == "distance")
    assert [panel.title.split(":")[0] for panel in made.panels] == ["NLL", "AUC", "PCOC"]
    for panel in made.panels[:2]:
        assert isinstance(panel, Bars)
        values = [bar.value for bar in panel.bars if bar.value is not None]
        assert values == sorted(values)
        assert "Oracle" not in [bar.name for bar in panel.bars]
        trace = next(bar for bar in panel.bars if bar.name == "TRACE")
        assert trace.value == pytest.approx(0.0167, abs=1e-4)
        assert trace.low is not None
        assert trace.high is not None
        assert trace.value is not None
        assert trace.low < trace.value < trace.high


def test_it_stands_alone_and_is_well_formed(tmp_path: Path) -> None:
    text = page(madeup.bench(tmp_path))
    assert not re.findall(r'(?:src|href)="(?!#|data:)', text)
    assert "http" not in text
    assert "url(" not in text
    Balanced().feed(text)
    ids = re.findall(r' id="([^"]*)"', text)
    assert len(ids) == len(set(ids))
    assert set(re.findall(r'href="#([^"]*)"', text)) <= set(ids)


class Balanced(HTMLParser):
    """Fails on a tag that closes another one."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: object) -> None:
        if tag not in ("meta", "link"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_startendtag(self, tag: str, attrs: object) -> None:
        pass


def test_every_drawing_has_words(tmp_path: Path) -> None:
    out = madeup.bench(tmp_path)
    text, made = page(out), make_figures(Outcome(out))
    drawings = re.findall(r'<svg [^>]*class="plot"[^>]*>', text)
    assert len(drawings) == sum(len(figure.panels) for figure in made)
    assert all('role="img"' in one and len(re.findall('aria-label="([^"]{20,})', one)) == 1 for one in drawings)
    keys = "distance auc-over-time nll-over-time pcoc-over-time"
    assert [figure.key for figure in made] == keys.split()


def test_drawing_it_again_gives_the_same_bytes(tmp_path: Path, call: Call) -> None:
    out = madeup.bench(tmp_path / "one")
    first = page(out)
    assert call("report", out) == 0
    assert page(out) == first == page(madeup.bench(tmp_path / "two"))


@pytest.mark.parametrize("bad", ["<script>alert(1)</script>", '"><img src=x>', "a & b"])
def test_what_users_name_is_shown_and_not_interpreted(tmp_path: Path, bad: str) -> None:
    plain = len(re.findall("<(script|img)", page(madeup.bench(tmp_path / "plain"))))
    out = madeup.bench(tmp_path / "bad", {**madeup.AUC, bad: (0.7, 0.7, 0.75)}, about=bad)
    text = page(out)
    assert len(re.findall("<(script|img)", text)) == plain
    assert row(text, str(escape(bad)))[0] == "0.7167 ± 0.0289"


def test_cells_need_not_be_kept(tmp_path: Path) -> None:
    out = madeup.bench(tmp_path)
    for path in sorted((out / "cells").rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    facts = read_json(out / "bench.json")
    write_json(out / "bench.json", {key: facts[key] for key in facts if key != "source"})  # as docs/collect.py does
    assert "over-time" not in page(out)
    assert row(page(out), "TRACE")[0] == "0.7967 ± 0.0153"


# What is not complete.


def test_an_unfinished_bench_says_what_is_missing_and_why(tmp_path: Path) -> None:
    out = madeup.bench(tmp_path, {**madeup.AUC, "GDFM": (0.7, None, None)})
    write_json(out / "failed.json", {"GDFM~seed1": "the loss is <nan>"})
    text = page(out)
    assert "2 of 18 cells have no result" in text
    assert "<code>GDFM~seed1</code>: the loss is &lt;nan&gt;" in text
    assert "<code>GDFM~seed2</code>: not finished" in text


def test_a_bench_without_any_result_has_a_report(tmp_path: Path, call: Call) -> None:
    out = madeup.bench(tmp_path)
    (out / "results.parquet").unlink()
    for path in sorted((out / "cells").rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    assert call("report", out) == 0
    assert "15 of 15 cells have no result" in (out / "report.html").read_text()


def test_no_bench_is_no_traceback(tmp_path: Path, call: Call, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("report", tmp_path) == 2
    assert "no bench.json: give the directory that `tracecvr bench` wrote" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_one_seed_has_no_interval_and_says_so(tmp_path: Path) -> None:
    out = madeup.bench(tmp_path, {"DEFER": (0.76,), "TRACE": (0.78,)})
    text = page(out)
    assert "One seed: variation between seeds is not known" in text
    assert row(text, "TRACE")[0] == "0.7800"


# Words.


@pytest.mark.parametrize("name", ["DEFER", "Telescoped"])
def test_the_best_method_is_named_whoever_it_is(tmp_path: Path, name: str) -> None:
    """And no method is called ours or a baseline."""
    out = madeup.bench(tmp_path, {name: (0.75, 0.77, 0.761), "Vanilla": (0.70, 0.72, 0.71)})
    text = words(out)
    assert f"better: Use {name}: its NLL, " in text
    shown = re.sub("<style>.*?</style>", "", page(out), flags=re.DOTALL)
    assert not re.findall(r"\b(ours|baseline|Inside TRACE)\b", re.sub("<[^>]*>", " ", shown))


def test_noise_is_called_noise(tmp_path: Path) -> None:
    text = words(madeup.bench(tmp_path, {"DEFER": (0.70, 0.80, 0.71), "TRACE": (0.75, 0.70, 0.80)}))
    assert "open: TRACE is ahead: its NLL, " in text
    assert re.search(r"not statistically significant over \d+ days and the seeds", text)
    assert "Use either; TRACE is not slower." in text


def test_seeds_that_agree_do_not_hide_that_days_differ(tmp_path: Path) -> None:
    out = madeup.bench(tmp_path, {"DEFER": (0.75, 0.75, 0.75), "TRACE": (0.752, 0.752, 0.752)})
    assert "better: Use TRACE: " in words(out), "days are alike"
    for path in out.glob("cells/TRACE*/intervals.parquet"):
        frame = pl.read_parquet(path)
        frame.with_columns(pl.col("nll") + 0.3 * (-1) ** (pl.col("start") // DAY % 2)).write_parquet(path)
    assert "open: TRACE is ahead: " in words(out)


# Figures.


def test_over_time_is_weighted_by_clicks_and_skips_what_is_undefined(tmp_path: Path) -> None:
    out = madeup.bench(tmp_path, {"DEFER": (0.7,), "TRACE": (0.8,)})
    frame = pl.DataFrame({"start": [0, HOUR, DAY], "clicks": [10, 30, 5], "auc": [0.5, 0.9, None], "nll": [1.0, 2, 3]})
    frame = frame.with_columns(conversions=1)
    for name in ("DEFER", "TRACE"):
        frame.write_parquet(out / "cells" / f"{name}~seed0" / "intervals.parquet")
    over_time = next(figure for figure in make_figures(Outcome(out)) if figure.key == "auc-over-time")
    chart = over_time.panels[0]
    assert isinstance(chart, Chart)
    assert chart.series[1].x == pytest.approx((0.0, 1 / 24))
    assert chart.series[1].y == (0.5, 0.9)
    gap = over_time.panels[1]
    assert isinstance(gap, Chart)
    assert [one.name for one in gap.series] == ["DEFER"]
    assert gap.series[0].y == (0.0, 0.0)


def test_a_partial_last_day_is_not_drawn() -> None:
    starts = np.arange(3 * 24 + 5) * HOUR
    frame = pl.DataFrame({"start": starts, "clicks": 10, "conversions": 2, "auc": 0.7}).with_columns(seed=0)
    assert list(by_day(frame, "auc", DAY)) == [0.0, 1.0, 2.0]
    assert list(by_day(frame.filter(pl.col("start") >= 20 * HOUR), "auc", DAY)) == [1.0, 2.0]


def test_calibration_of_a_day_is_a_ratio_of_sums() -> None:
    """Intervals without a conversion count: their PCOC is undefined, and their ECE is the mean prediction."""
    rng = np.random.default_rng(0)
    log_odds, label = rng.normal(-2.0, 0.5, (48, 20)), rng.random((48, 20)) < 0.08
    rows = [
        {"start": n * HOUR, "clicks": 20, "conversions": int(y.sum())} | asdict(evaluate(s, y))
        for n, (s, y) in enumerate(zip(log_odds, label, strict=True))
    ]
    assert any(row["pcoc"] is None for row in rows)
    curve = by_day(pl.DataFrame(rows).with_columns(seed=0), "pcoc", DAY)
    exact = [probability(log_odds[d : d + 24]).sum() / label[d : d + 24].sum() for d in (0, 24)]
    assert list(curve.values()) == pytest.approx(exact)


def test_of_many_rows_the_best_are_drawn_each_with_a_look_of_its_own(tmp_path: Path) -> None:
    many = {**madeup.AUC, **{f"x{n}": (0.6 + n / 100,) * 3 for n in range(18)}}
    made = next(f for f in make_figures(Outcome(madeup.bench(tmp_path, many))) if f.key == "auc-over-time")
    styles = made.legend()
    assert set(styles) == {"TRACE", "DEFER", "x17", "x16", "Vanilla", "Oracle"}  # the best five, and the bound
    assert (styles["TRACE"], styles["Oracle"]) == (0, 1)
    looks = {drawing.write("sample", style) for style in styles.values()}
    assert len(looks) == len(styles)


def test_dates_stand_on_axes_where_the_log_has_a_calendar(tmp_path: Path) -> None:
    out = madeup.bench(tmp_path)
    assert {axis.label for axis in time_axes(out)} == {"day of the log"}
    log = {"origin": 1_511_539_200, "notes": [], "counts": {}}  # 2017-11-24T16:00Z
    write_json(out / "bench.json", read_json(out / "bench.json") | {"log": log})
    axes = time_axes(out)
    assert {axis.label for axis in axes} == {"date (UTC)"}
    assert [text for _, text in axes[0].ticks(10.0, 19.0, 5)] == ["4 Dec", "6 Dec", "8 Dec", "10 Dec", "12 Dec"]
    assert axes[0].format_value(10.0) == "2017-12-04"
    assert [text for _, text in axes[0].ticks(0.0, 0.5, 2)] == ["24 Nov 16:00", "24 Nov 22:00", "25 Nov 04:00"]


def time_axes(out: Path) -> list[Axis]:
    charts = [panel for figure in make_figures(Outcome(out)) for panel in figure.panels if isinstance(panel, Chart)]
    return [chart.x for chart in charts if chart.x.days]


def test_words_are_explained(tmp_path: Path) -> None:
    text = page(madeup.bench(tmp_path))
    for word in ("AUC", "NLL", "ECE", "events per click", "Oracle"):
        assert f"<dt>{word}</dt>" in text[text.index('id="words"') :]


def test_marks_fall_inside_their_drawing() -> None:
    lines = tuple(Series(f"line {n}", n, (0.0, 1.0, 2.0), (0.1 * n, 0.5, 1.0)) for n in range(8))
    for width in (160.0, 354.0, 1000.0):
        chart = Chart("", Axis("x"), Axis("y"), lines)
        text = drawing.write("plot", drawing.draw(chart, width))
        height = float(re.findall(r'viewBox="0 0 [\d.]+ ([\d.]+)"', text)[0])
        points = [tuple(map(float, p.split(","))) for line in re.findall('points="(.*?)"', text) for p in line.split()]
        assert len(points) == 24
        assert all(0 <= x <= width and 0 <= y <= height for x, y in points)


def test_bars_start_at_zero_and_have_lengths_in_proportion() -> None:
    bars = Bars("", Axis("x"), (Bar("a", 1.0), Bar("b", -2.0, sure=False)))
    text = drawing.write("plot", drawing.draw(bars, 400.0))
    (a, wide_a), (b, wide_b) = (
        (float(x), float(w)) for x, w in re.findall(r'<rect x="([\d.]+)" .*?width="([\d.]+)"', text)
    )
    assert wide_b == pytest.approx(2 * wide_a, abs=0.2)
    assert b + wide_b == pytest.approx(a, abs=0.2)
    assert text.count('class="b hollow"') == 1


def test_bars_of_a_ratio_start_where_it_is_right() -> None:
    bars = Bars("", Axis("x"), (Bar("a", 1.2), Bar("b", 0.9)), base=1.0)
    text = drawing.write("plot", drawing.draw(bars, 400.0))
    (a, wide_a), (b, wide_b) = (
        (float(x), float(w)) for x, w in re.findall(r'<rect x="([\d.]+)" .*?width="([\d.]+)"', text)
    )
    assert b + wide_b == pytest.approx(a, abs=0.2)
    assert wide_a == pytest.approx(2 * wide_b, abs=0.2)


def test_a_level_is_drawn_even_if_all_values_are_on_one_side() -> None:
    chart = Chart("", Axis("x"), Axis("PCOC"), (Series("a", 0, (0.0, 1.0), (1.4, 1.5)),), level=1.0)
    assert 'class="level"' in drawing.draw(chart, 400.0).content


def test_a_figure_stands_alone_as_svg(tmp_path: Path) -> None:
    """Other programs than browsers know neither CSS variables nor the page's style sheet."""
    for figure in make_figures(Outcome(madeup.bench(tmp_path))):
        text = drawing.write_document(figure)
        root = ElementTree.fromstring(text)
        assert root.attrib["viewBox"] == f"0 0 {root.attrib['width']} {root.attrib['height']}"
        assert "var(" not in text
        assert light_colours()["paper"] in text
        texts = {one.text for one in root.iter("{http://www.w3.org/2000/svg}text")}
        assert {figure.title, *figure.legend()} <= texts


def test_a_run_can_be_drawn_over_time() -> None:
    frame = pl.DataFrame({"start": np.arange(96) * HOUR, "clicks": 10, "conversions": 2, "auc": 0.7, "nll": 0.4})
    made = runs_over_time({"trace": frame.with_columns(ece=0.1, pcoc=1.1)}, origin=0)
    assert [panel.title for panel in made.panels] == ["AUC", "NLL", "PCOC; 1 is right"]
    assert "1970-01-04 21:00: 1.1000" in drawing.write_document(made)


@pytest.mark.parametrize(
    ("axis", "low", "high", "expected"),
    [
        (Axis(""), 0.0, 1.0, ["0.0", "0.5", "1.0"]),
        (Axis("", days=True), 3.0, 9.0, ["4", "6", "8"]),
        (Axis(""), -0.003, 0.003, ["-0.002", "0.000", "0.002"]),
    ],
)
def test_ticks_are_round_and_few(axis: Axis, low: float, high: float, expected: list[str]) -> None:
    assert [text for _, text in axis.ticks(low, high, 3)] == expected
