"""The proposed schema as TOML: every line says what was seen, and it can be used as it stands if the guess is right."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from tracecvr.base.config import DAY, HOUR, MINUTE
from tracecvr.base.durations import exact_duration
from tracecvr.data.inspection.columns import Profile, Sampled
from tracecvr.data.inspection.guess import Guess, GuessedAction
from tracecvr.data.inspection.measurements import Measured, ProposedLabels
from tracecvr.data.own_log.schema import Defects

DRAFT_ORIGINS = "1990-01-01T00:00:00Z", "-1000000000000"
"""Early enough for any log: while nothing is known but what a sample shows."""

_DRAFT_BOUNDS = "1990-01-01", "2100-01-01"
"""What a draft takes for times that can be."""

SKEW = 5 * MINUTE
FEW_VALUES, NEW_VALUES = 2_000, 0.02
"""A column is given a vocabulary if it has at most so many values, and at most such a share of the later clicks has one
that no earlier click has."""

BOUNDS = "earliest", "latest"
_MOST_IDS = 1 << 18
_IDS_PER_VALUE = 8
"""Of values that are hashed to so many times as many ids, about one in ten shares its id with another."""

_BINS = 32
_NULLS = ("dropped_null_click_time", "dropped_null_click_id", "dropped_null_action_time", "dropped_label_without_time")
_DEFECTS: dict[str, tuple[str, tuple[str, ...]]] = {
    "duplicate_click": ("first, last, refuse", ("dropped_duplicate_click", "duplicate_click_differs")),
    "conversion_without_click": ("drop, refuse", ("dropped_conversion_without_click",)),
    "skew": ("so early is blamed on clocks", ("clock_skew",)),
    "clock_skew": ("move to the click, or drop like what is earlier", ()),
    "before_click": ("drop the click, or ignore the conversion", ("dropped_conversion_before_click",)),
    "null": ("drop, refuse", _NULLS),
    "ambiguous_time": ("earliest, latest, null", ("ambiguous_time",)),
    "nonexistent_time": ("shift, null", ("nonexistent_time",)),
    "refund": ("retract from then on, or ignore", ("refund", "refund_after_d_max")),
}
"""Keys of [defects], what they may be, and what is counted of each."""
_DRAFT = ProposedLabels(100 * 365 * DAY, 0.0, (HOUR,), 1, HOUR, 100 * 365 * DAY)


@dataclass(frozen=True)
class Proposal:
    """All that a schema is written from; what is not known yet is None."""

    given: Sequence[str]
    folder: Path
    logs: Sequence[Sampled]
    guess: Guess
    zone: str = "UTC"
    measured: Measured | None = None
    origin: str = ""
    counts: Mapping[str, int] | None = None

    def text(self) -> str:
        """The TOML file."""
        words = " ".join(Path(name).name for name in self.given)
        parts = [
            f"# Proposed by `tracecvr inspect {words}`: read it, correct it, then",
            "# tracecvr prepare logs --schema THIS --out table",
            "",
        ]
        doubts = self.guess.doubts + ([] if self.measured is None else self.measured.doubts)
        parts += [f"# In doubt: {doubt}." for doubt in doubts]
        parts += self._head() + self._time() + self._click() + self._actions() + self._files()
        parts += self._labels() + self._defects() + self._features()
        return "\n".join(parts) + "\n"

    def _head(self) -> list[str]:
        text = next((file for log in self.logs for file in log.files if not file.parquet), None)
        rows = sum(log.rows for log in self.logs)
        kind = "one row per click" if self.guess.shape == "clicks" else "one row per event"
        lines = [_line("shape", self.guess.shape, f"{kind}; {rows:,} rows were seen")]
        if not self.guess.by_file:
            lines.append(_line("files", [self._relative(name) for name in self.given], "beside this file"))
        if text is not None:
            lines.append(_line("separator", text.separator))
            lines.append(_line("header", text.header, "" if text.header else "columns are column_1, column_2, ..."))
        return lines

    def _time(self) -> list[str]:
        time = self.guess.click
        lines = ["", "[time]", _line("unit", time.unit, f"{time.name}: {time.examples(2)}")]
        if any(one.naive for log in self.logs for one in log.columns.values()):
            lines.append("# In doubt: some times have no offset. They are read in this zone: name the one they are of.")
        lines.append(_line("zone", self.zone, "of times without an offset"))
        origin = self.origin or DRAFT_ORIGINS[time.relative]
        lines.append(_line("origin", int(origin) if time.relative else origin, "second 0 of the table"))
        columns = [one for log in self.logs for one in log.columns.values()]
        times = [one for one in columns if one.unit is not None or one.name in self._delays()]
        absent = list(dict.fromkeys(text for one in times for text in one.absent))
        lines += self._bounds()
        if any(one.either for one in times):
            lines.append(
                "# In doubt: day and month could be the other way round (dd/mm/yyyy or mm/dd/yyyy). This way, the log "
                "is the shorter."
            )
        if absent:
            lines.append("# In doubt: these stand where a time is expected, and are taken to mean that there is none.")
            lines.append(_line("absent", absent))
        return lines

    def _delays(self) -> list[str]:
        return [action.delay for action in self.guess.actions]

    def _bounds(self) -> list[str]:
        """Times outside are mistakes. A draft has wide bounds; the schema has some only if there are such mistakes."""
        relative, measured = self.guess.click.relative, self.measured
        if measured is None:
            return [] if relative else [_line(key, at) for key, at in zip(BOUNDS, _DRAFT_BOUNDS, strict=True)]
        if not any(measured.outliers.values()):
            return []
        first, last = measured.first_click // DAY * DAY, (measured.last_seen // DAY + 1) * DAY - 1
        lines = []  # what is in doubt stands at the top
        origin = int(self.origin) if relative else int(datetime.fromisoformat(self.origin).timestamp())
        for key, at in zip(BOUNDS, (first, last), strict=True):
            moment = origin + at
            text = datetime.fromtimestamp(moment, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
            lines.append(_line(key, moment if relative else text))
        return lines

    def _click(self) -> list[str]:
        guess, lines = self.guess, ["", "[click]"]
        if guess.id:
            key = guess.id[0] if len(guess.id) == 1 else list(guess.id)
            lines.append(_line("id", key, "what tells clicks apart"))
        if guess.whole_ids:
            lines.append(_line("whole_ids", True, "whole numbers, which events name as numbers"))
        lines.append(_line("time", guess.click.name))
        if guess.type:
            lines.append(_line("type", guess.type, "what happened"))
        if guess.event:
            lines.append(_line("event", guess.event, "the word for a click"))
        return lines

    def _actions(self) -> list[str]:
        lines, units = [], self._units()
        for number, action in enumerate(self.guess.actions):
            what = "the conversion" if number == 0 else "an action before or beside it"
            lines += ["", "[[action]]", _line("name", action.name, what), *_where(action, units)]
        if self.guess.refund is not None:
            doubts = [f"# In doubt: {doubt}." for doubt in partial_refunds(self.guess, self.counts or {})]
            lines += ["", "[refund]", *doubts, *_where(self.guess.refund, units)]
        return lines

    def _units(self) -> dict[str, str]:
        """Columns of times in another unit than the click's."""
        every = {one.name: one for log in self.logs for one in log.columns.values() if one.unit is not None}
        return {name: one.unit for name, one in every.items() if one.unit not in (None, self.guess.click.unit)}

    def _files(self) -> list[str]:
        lines: list[str] = []
        for one in self.guess.by_file:
            paths, rows = [self._relative(name) for name in one.log.given], one.log.rows
            lines += ["", "[[file]]", _line("path", paths[0] if len(paths) == 1 else paths, f"{rows:,} rows")]
            if one.type:
                lines.append(_line("type", one.type, "the column that says what a row of it is"))
            else:
                lines.append(_line("event", one.event, "what every row of it is"))
            lines.append(_line("time", one.time))
            lines += [_line("unit", one.unit)] if one.unit != self.guess.click.unit else []
        return lines

    def _labels(self) -> list[str]:
        labels = _DRAFT if self.measured is None else self.measured.labels
        later = f"{labels.later:.1%} of the conversions come later and would not count"
        ends = [exact_duration(end) for end in labels.horizons]
        return [
            "",
            "[labels]",
            _line("d_max", exact_duration(labels.d_max), later),
            _line("horizons", ends, "near the 10, 25, 50, 75 and 90 % quantiles of the delay"),
            _line(
                "split", exact_duration(labels.split), f"end of the warm-up part: about {labels.warm_clicks:,} clicks"
            ),
            _line("interval", exact_duration(labels.interval), f"about {labels.interval_clicks:,} clicks each"),
            *self._end(labels),
            "# negatives_kept = 0.1              # if only a share of the clicks without a conversion was kept",
        ]

    def _end(self, labels: ProposedLabels) -> list[str]:
        if self.measured is None:
            return [_line("observed_until", exact_duration(labels.observed_until))]
        last, seen = self._date(self.measured.last_click), self._date(self.measured.last_seen)
        return [
            "# In doubt: labels are taken to end with the log.",
            f"# The last click is of {last}, the last of anything of {seen}.",
            _line("observed_until", exact_duration(labels.observed_until), "a later click has no final label"),
        ]

    def _date(self, seconds: int) -> str:
        if self.guess.click.relative:
            return f"second {seconds + int(self.origin or 0)}"
        start = datetime.fromisoformat(self.origin).timestamp()
        return datetime.fromtimestamp(start + seconds, UTC).strftime("%Y-%m-%d %H:%M UTC")

    def _defects(self) -> list[str]:
        counts, plain = self.counts or {}, Defects()
        lines = ["", "[defects]                           # counts are of this log, as this file reads it"]
        for key, (choices, names) in _DEFECTS.items():
            seen = ", ".join(f"{counts[name]:,} {name.removeprefix('dropped_')}" for name in names if name in counts)
            value = exact_duration(SKEW) if key == "skew" else getattr(plain, key)
            lines.append(_line(key, value, "; ".join(filter(None, (choices, seen)))))
        share = _share_dropped(counts)
        lines += [f"# In doubt: {doubt}." for doubt in many_dropped(counts)]
        most = plain.max_bad if share <= plain.max_bad else int(100 * share + 1) / 100
        return [*lines, _line("max_bad", most, "share of rows that may be dropped")]

    def _features(self) -> list[str]:
        leaks = {} if self.measured is None else self.measured.leaks
        lines = ["", "[features]"]
        for one in self.guess.features:
            if one.name in leaks:
                lines.append(f"# left out: {_key(one.name)}: {leaks[one.name]}. Is it known before the outcome?")
            else:
                lines.append(self._feature(one))
        lines += [f"# left out: {_key(name)}: {why}" for name, why in self.guess.left_out.items()]
        return lines

    def _feature(self, one: Profile) -> str:
        """How a column is made a feature. While nothing is measured, values stay as they are."""
        if (measured := self.measured) is None:
            return f'{_key(one.name)} = {{kind = "vocabulary"}}'
        values, unseen = measured.values[one.name], measured.unseen[one.name]
        seen = f"{values:,} different: {one.examples()}"
        if one.number and one.distinct > 50 and not self._names(one):
            numbers = one.values.cast(float, strict=False).drop_nulls()
            low, middle, high = float(numbers.min()), float(numbers.median()), float(numbers.max())  # type: ignore[arg-type]
            scale = ', scale = "log"' if low >= -1 and high > 50 * max(middle, 1.0) else ""
            return f'{_key(one.name)} = {{kind = "binned", size = {_BINS}{scale}}}    # {seen}'
        if values <= FEW_VALUES and unseen <= NEW_VALUES:
            return f'{_key(one.name)} = {{kind = "vocabulary"}}    # {_one_line(seen)}'
        size = min(_MOST_IDS, max(16, 1 << (_IDS_PER_VALUE * values - 1).bit_length()))
        if size > measured.clicks:
            seen += f"; more rows than the {measured.clicks:,} clicks: is it worth them?"
        return f'{_key(one.name)} = {{kind = "hashed", size = {size}}}    # {_one_line(seen)}'

    def _names(self, one: Profile) -> bool:
        """Whether the numbers of a column are names, not amounts."""
        return one.named_id or one.name in self.guess.id

    def _relative(self, name: str) -> str:
        return Path(os.path.relpath(Path(name).absolute(), self.folder.absolute())).as_posix()


def _share_dropped(counts: Mapping[str, int]) -> float:
    return sum(n for name, n in counts.items() if name.startswith("dropped_")) / max(counts.get("rows", 1), 1)


def many_dropped(counts: Mapping[str, int]) -> list[str]:
    """A doubt, if more rows are dropped than is usual."""
    share = _share_dropped(counts)
    if share <= Defects().max_bad:
        return []
    reasons = sorted(((n, name) for name, n in counts.items() if name.startswith("dropped_") and n), reverse=True)
    words = ", ".join(f"{n:,} {name.removeprefix('dropped_')}" for n, name in reasons[:3])
    return [f"{share:.1%} of the rows are dropped ({words}): see why before you allow it"]


def partial_refunds(guess: Guess, counts: Mapping[str, int]) -> list[str]:
    """A doubt, if amounts decide that some refunds do not take a conversion back."""
    if guess.refund is None or not guess.refund.amount or not counts.get("refund_partial"):
        return []
    names = " and ".join(dict.fromkeys(repr(one.amount) for one in (guess.actions[0], guess.refund)))
    return [
        f"{counts['refund_partial']:,} refunds are of a part: a conversion stands until as much was refunded as was "
        f"bought, by {names}; if every refund is of everything, leave out `amount`"
    ]


def _where(action: GuessedAction, units: Mapping[str, str]) -> list[str]:
    lines = [_line("amount", action.amount, "how much")] if action.amount else []
    if action.event:
        return [_line("event", action.event, action.why), *lines]
    lines += [_line("label", action.label, "1 where it happened")] if action.label else []
    if action.delay:
        return [*lines, _line("delay", action.delay, action.why), _line("unit", action.unit, "of the delay")]
    lines.append(_line("time", action.time, action.why))
    return lines + ([_line("unit", units[action.time])] if action.time in units else [])


def _line(key: str, value: object, comment: str = "") -> str:
    line = f"{key} = {json.dumps(value, ensure_ascii=False)}"
    return f"{line:<35} # {_one_line(comment)}" if comment else line


def _key(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else json.dumps(name, ensure_ascii=False)


def _one_line(text: str) -> str:
    return " ".join(text.split())
