"""The whole look at a log: sample, read roles, clean by a draft, propose, and count by what is proposed."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from tracecvr.base.config import DAY, HOUR, MINUTE
from tracecvr.base.durations import moment
from tracecvr.base.errors import UserError
from tracecvr.base.progress import Progress, no_progress
from tracecvr.data.encoder import Binned, Column, Hashed, Vocabulary
from tracecvr.data.external_sort import Scratch
from tracecvr.data.inspection.columns import Profile
from tracecvr.data.inspection.measurements import Measured, measure
from tracecvr.data.inspection.roles import Reading, read_roles
from tracecvr.data.inspection.tables import NOTHING_SAID, Said, Sampled, sample_tables
from tracecvr.data.own_log import schema as schemas
from tracecvr.data.own_log.cleaning import Cleaner
from tracecvr.data.own_log.rows import Rows
from tracecvr.data.own_log.schema import ClickColumns, Defects, Labels, LogSchema, Times, comment, write_toml
from tracecvr.data.own_log.times import origin_of


@dataclass(frozen=True)
class Inspection:
    """What was seen, and the schema that says so."""

    schema: LogSchema
    toml: str
    columns: Sequence[Profile]
    measured: Measured
    counts: Counter[str]
    doubts: list[str]


def inspect_files(
    given: Sequence[str], folder: Path, zone: str = "UTC", progress: Progress = no_progress, said: Said = NOTHING_SAID
) -> Inspection:
    """Look at files, folders or patterns and propose a schema that will be written to `folder`."""
    schemas.refuse_unknown_zone(zone, "zone")
    tables = sample_tables(given, said.tables)
    reading, columns = read_roles(tables, said)
    if not reading.features:
        raise UserError("no column is left that could be a feature: a log needs at least one")
    drafted = schemas.check(draft(reading, tables, given, folder, zone))
    first_look = measure(drafted, progress)
    if not len(first_look.delays[drafted.names[0]]):
        raise UserError(explain_no_conversion(reading, tables, first_look))
    leaks = {name: f"{why}. Is it known before the outcome?" for name, why in first_look.leaks.items()}
    if len(leaks) == len(reading.features):
        raise UserError(f"every feature gives the label away ({', '.join(leaks)}): there is nothing to learn from")
    schema, measured = propose(drafted, reading, first_look)
    counts = count_defects(schema, progress)
    if schema.defects.max_bad < (share := share_dropped(counts)) and share_lost(counts) <= _ALLOWED:
        schema = replace(schema, defects=replace(schema.defects, max_bad=int(100 * share + 1) / 100))
    doubts = list_doubts(reading, measured, counts)
    words = " ".join(Path(name).name for name in given)
    head = comment(
        [
            f"Proposed by `tracecvr inspect {words}`: read it, correct it, then",
            "tracecvr prepare logs --schema THIS --out table",
            *(f"In doubt: {doubt}." for doubt in doubts),
        ]
    )
    notes = note_what_was_seen(schema, reading, tables, measured, counts)
    text = write_toml(schema, notes, leaks | reading.left_out)
    return Inspection(schema, f"{head}\n{text}", list(columns.values()), measured, counts, doubts)


def count_defects(schema: LogSchema, progress: Progress) -> Counter[str]:
    cleaner = Cleaner(Rows(schema), schema.labels.d_max)
    with Scratch(progress=progress) as scratch:
        clicks = sum(map(len, cleaner.parts(scratch)))
    dropped, counts = cleaner.report()
    counts |= {f"dropped_{name}": n for name, n in dropped.items()}
    return Counter({"rows": cleaner.rows.read, "clicks": clicks} | counts)


# From a reading of a log to its schema: first a draft that any log fits, then what the cleaned log says.


FOREVER = 100 * 365 * DAY

_ORIGINS, _BOUNDS = ("1990-01-01T00:00:00Z", "-1000000000000"), ("1990-01-01", "2100-01-01")
"""Of a draft: early enough for any log, and what it takes for times that can be."""

_SKEW = 5 * MINUTE
_FEW_VALUES, _NEW_VALUES = 2_000, 0.02
"""A column is given a vocabulary if it has at most so many values, and at most such a share of the later clicks has one
that no earlier click has."""

_MOST_IDS, _IDS_PER_VALUE = 1 << 18, 8
"""Of values that are hashed to so many times as many ids, about one in ten shares its id with another."""

_BINS = 32
_ALLOWED = 0.1
"""A share of the clicks that may be left out without asking."""
_OF_CLICKS = ("duplicate_click", "click_out_of_range", "null_click_time", "null_click_id")


def draft(reading: Reading, tables: Sequence[Sampled], given: Sequence[str], folder: Path, zone: str) -> LogSchema:
    """A schema that will be written to `folder`, while nothing is known but what a sample shows."""
    time, text = reading.time, next((file for table in tables for file in table.files if file.is_text), None)
    columns = [one for table in tables for one in table.columns.values()]
    delays = [action.delay for action in reading.actions]
    absent = dict.fromkeys(word for one in columns if one.unit or one.name in delays for word in one.absent)
    times = Times(time.unit or "", zone, _ORIGINS[time.relative], tuple(absent))

    def place(names: Sequence[str]) -> tuple[str, ...]:
        return tuple(Path(os.path.relpath(Path(name).absolute(), folder.absolute())).as_posix() for name in names)

    return LogSchema(
        shape=reading.shape,
        files=() if reading.files else place(given),
        separator="," if text is None else text.separator,
        header=text is None or text.header,
        path=folder / "schema.toml",
        time=times if time.relative else replace(times, earliest=_BOUNDS[0], latest=_BOUNDS[1]),
        click=ClickColumns(reading.id, reading.whole_ids, time.name, type=reading.type, event=reading.event),
        action=tuple(reading.actions),
        refund=reading.refund,
        file=tuple(replace(file, path=place(file.path)) for file, _ in reading.files),
        labels=Labels(FOREVER, (HOUR,), split=1, observed_until=FOREVER),
        defects=Defects(skew=_SKEW),
        features=tuple(
            Binned(one.name, _BINS, decimal=",") if one.decimal == "," else Vocabulary(one.name)
            for one in reading.features
        ),
    )


def propose(drafted: LogSchema, reading: Reading, measured: Measured) -> tuple[LogSchema, Measured]:
    """The schema that fits a log, and what was measured in its times: since the first midnight."""
    start, _ = origin_of(drafted.time)
    origin = (start + measured.first_click) // DAY * DAY
    moved = measured.move(start - origin)

    def write(at: int) -> str:
        return str(at) if reading.time.relative else datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")

    times = replace(drafted.time, origin=write(origin), earliest="", latest="")
    if any(measured.outliers.values()):
        first, last = moved.first_click // DAY * DAY, (moved.last_seen // DAY + 1) * DAY - 1
        times = replace(times, earliest=write(origin + first), latest=write(origin + last))
    features = tuple(_column(one, reading, moved) for one in reading.features if one.name not in measured.leaks)
    return replace(drafted, time=times, labels=moved.labels, features=features), moved


def _column(one: Profile, reading: Reading, measured: Measured) -> Column:
    names = one.named_id or one.name in reading.id
    if one.number and (one.distinct > 50 or one.decimal == ",") and not names:
        numbers = one.values.cast(float, strict=False).drop_nulls()
        low, middle, high = float(numbers.min()), float(numbers.median()), float(numbers.max())  # type: ignore[arg-type]
        wide = low >= -1 and high > 50 * max(middle, 1.0)
        return Binned(one.name, _BINS, scale="log" if wide else "linear", decimal=one.decimal)
    values = measured.values[one.name]
    if values <= _FEW_VALUES and measured.unseen[one.name] <= _NEW_VALUES:
        return Vocabulary(one.name)
    return Hashed(one.name, min(_MOST_IDS, max(16, 1 << (_IDS_PER_VALUE * values - 1).bit_length())))


def list_doubts(reading: Reading, measured: Measured, counts: Counter[str]) -> list[str]:
    """Where another reading is possible, and whether much is lost by this one."""
    doubts = reading.doubts + measured.doubts
    if reading.refund is not None and reading.refund.amount and counts["refund_partial"]:
        names = " and ".join(dict.fromkeys(repr(one.amount) for one in (reading.actions[0], reading.refund)))
        doubts.append(
            f"{counts['refund_partial']:,} refunds are of a part: a conversion stands until as much was refunded as "
            f"was bought, by {names}; if every refund is of everything, leave out `amount`"
        )
    if (share := share_dropped(counts)) > Defects().max_bad:
        reasons = sorted(((n, name) for name, n in counts.items() if name.startswith("dropped_") and n), reverse=True)
        words = ", ".join(f"{n:,} {name.removeprefix('dropped_')}" for n, name in reasons[:3])
        lost = share_lost(counts)
        allowed = "" if lost <= _ALLOWED else f"; these are {lost:.0%} of the clicks, so `prepare` refuses the log"
        doubts.append(
            f"{share:.1%} of the rows are dropped ({words}){allowed}: see why before you allow it ([defects] max_bad)"
        )
    return doubts


def share_dropped(counts: Counter[str]) -> float:
    """The share of the rows that are left out as bad."""
    return sum(n for name, n in counts.items() if name.startswith("dropped_")) / max(counts["rows"], 1)


def share_lost(counts: Counter[str]) -> float:
    """The share of the clicks that are left out as bad."""
    lost = sum(counts[f"dropped_{name}"] for name in _OF_CLICKS)
    return lost / max(lost + counts["clicks"], 1)


def explain_no_conversion(reading: Reading, tables: Sequence[Sampled], measured: Measured) -> str:
    """Why a log has no conversion that could be read, with ids of both sides if these do not fit."""
    if measured.orphans and len(reading.id) == 1:
        name = reading.id[0]
        shown = [f"{one.name} has {one.columns[name].examples(2)}" for one in tables if name in one.columns]
        return (
            f"none of {measured.orphans:,} conversions has the id of a click in {name!r}: {'; '.join(shown)}. Write "
            "ids in one way in all files"
        )
    return "the log has no conversion that could be read: look at the columns and describe it by hand"


def note_what_was_seen(
    schema: LogSchema, reading: Reading, tables: Sequence[Sampled], measured: Measured, counts: Counter[str]
) -> dict[str, str]:
    """Remarks on the keys of a schema."""
    origin, late = origin_of(schema.time), (measured.conversions > schema.labels.d_max).mean()
    notes = {"shape": f"{sum(table.rows for table in tables):,} rows were seen", "time.zone": "", "time.origin": ""}
    notes["time.unit"] = f"{reading.time.name}: {reading.time.examples(2)}"
    if any(file.is_text for table in tables for file in table.files):
        notes |= {"separator": "", "header": ""}
    if schema.time.absent:
        notes["time.absent"] = "in doubt: they stand where a time is expected"
    for place, action in enumerate(schema.kinds):
        prefix = f"action.{place}" if place < len(schema.action) else "refund"
        key = "event" if action.event else "delay" if action.delay else "time"
        notes[f"{prefix}.{key}"] = reading.seen[action.name]
    notes |= {f"file.{place}.path": f"{table.rows:,} rows" for place, (_, table) in enumerate(reading.files)}
    last, seen = (
        moment(at, origin[0]) if origin[1] else f"second {at + origin[0]}"
        for at in (measured.last_click, measured.last_seen)
    )
    notes |= {
        "labels.d_max": f"{late:.1%} of the conversions come later and would not count",
        "labels.horizons": "near the 10, 25, 50, 75 and 90 % quantiles of the delay",
        "labels.observed_until": f"in doubt: taken to be the end of the log; last click {last}, last of all {seen}",
        "labels.negatives_kept": "",
        "defects.skew": f"{counts['clock_skew']:,} clock_skew",
        "defects.max_bad": f"{share_dropped(counts):.2%} are",
    }
    for one in reading.features:
        size = next((column.size for column in schema.features if column.raw == one.name), 0)
        notes[f"features.{one.name}"] = f"{measured.values[one.name]:,} different: {one.examples()}" + (
            f"; more rows than the {measured.clicks:,} clicks: is it worth them?" if size > measured.clicks else ""
        )
    return notes
