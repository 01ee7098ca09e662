"""The whole look at a log: sample, guess, clean by a draft, propose, and count by what is proposed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tracecvr.base.config import DAY
from tracecvr.base.errors import UserError
from tracecvr.base.files import parse_toml
from tracecvr.base.progress import Progress, no_progress
from tracecvr.data.external_sort import Scratch
from tracecvr.data.inspection import columns, measurements
from tracecvr.data.inspection.column_roles import guess_roles
from tracecvr.data.inspection.columns import Profile
from tracecvr.data.inspection.file_groups import sample_tables
from tracecvr.data.inspection.guess import Guess
from tracecvr.data.inspection.measurements import Measured
from tracecvr.data.inspection.proposal import DRAFT_ORIGINS, Proposal, many_dropped, partial_refunds
from tracecvr.data.inspection.said import NOTHING_SAID, Said
from tracecvr.data.own_log import schema
from tracecvr.data.own_log.cleaning import COUNTED, DROPPED, Cleaner
from tracecvr.data.own_log.rows import Rows
from tracecvr.data.own_log.schema import LogSchema
from tracecvr.data.own_log.times import origin_of


@dataclass(frozen=True)
class Inspection:
    """What was seen, and the schema that says so."""

    toml: str
    columns: Sequence[Profile]
    guess: Guess
    measured: Measured
    counts: dict[str, int]

    @property
    def doubts(self) -> list[str]:
        """Where another reading is possible, and whether much is lost by this one."""
        partial = partial_refunds(self.guess, self.counts)
        return self.guess.doubts + self.measured.doubts + partial + many_dropped(self.counts)

    def to_json(self) -> dict[str, Any]:
        labels = self.measured.labels
        return {
            "schema": self.toml,
            "columns": [
                dict(zip(("name", "holds", "examples"), row, strict=True))
                for row in columns.describe_columns(self.columns)
            ],
            "shape": self.guess.shape,
            "doubts": self.doubts,
            "left_out": self.guess.left_out | self.measured.leaks,
            "delays": self.measured.to_json(),
            "d_max_s": labels.d_max,
            "horizons_s": list(labels.horizons),
            "counts": self.counts,
        }


def inspect_files(
    given: Sequence[str], folder: Path, zone: str = "UTC", progress: Progress = no_progress, said: Said = NOTHING_SAID
) -> Inspection:
    """Look at files, folders or patterns and propose a schema that will be written to `folder`. Times without an offset
    are read in `zone`."""
    schema.refuse_unknown_zone(zone, "zone")
    logs = sample_tables(given, said.tables)
    guess, profiles = guess_roles(logs, said)
    if not guess.features:
        raise UserError("no column is left that could be a feature: a log needs at least one")
    draft = Proposal(given, folder, logs, guess, zone)
    measurement = measurements.measure(_parse(draft), progress)
    if set(measurement.leaks) >= {one.name for one in guess.features}:
        raise UserError(
            f"every feature gives the label away ({', '.join(measurement.leaks)}): there is nothing to learn from"
        )
    final = replace(draft, **_move(draft, measurement))
    counts = count_defects(_parse(final), progress)
    text = replace(final, counts=counts).text()
    return Inspection(text, list(profiles.values()), guess, final.measured or measurement, counts)


def count_defects(described: LogSchema, progress: Progress = no_progress) -> dict[str, int]:
    """The defects of a log, with the code that `prepare` uses."""
    rows = Rows(described)
    with Scratch(progress=progress) as scratch:
        clicks = sum(map(len, Cleaner(rows, described.labels.d_max).parts(scratch)))
    dropped = {f"dropped_{name}": rows.dropped[name] for name in DROPPED}
    return {"rows": rows.read, "clicks": clicks} | {name: rows.counts[name] for name in COUNTED} | dropped


def _parse(proposal: Proposal) -> LogSchema:
    path = proposal.folder / "schema.toml"
    return schema.parse(path, parse_toml(path, proposal.text()))


def _move(draft: Proposal, measurement: Measured) -> dict[str, Any]:
    """Times since an origin that fits the log: the first midnight."""
    relative = draft.guess.click.relative
    start, _ = origin_of(schema.Times(origin=DRAFT_ORIGINS[relative]))
    origin = (start + measurement.first_click) // DAY * DAY
    shift = origin - start
    first, last, seen = measurement.first_click - shift, measurement.last_click - shift, measurement.last_seen - shift
    text = str(origin) if relative else datetime.fromtimestamp(origin, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return {"measured": replace(measurement, first_click=first, last_click=last, last_seen=seen), "origin": text}
