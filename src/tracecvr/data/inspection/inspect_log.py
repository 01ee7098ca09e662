"""The whole look at a log: sample, read roles, clean by a draft, propose, and count by what is proposed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tracecvr.base.errors import UserError
from tracecvr.base.progress import Progress, no_progress
from tracecvr.data.external_sort import Scratch
from tracecvr.data.inspection.columns import Profile
from tracecvr.data.inspection.measurements import Measured, measure
from tracecvr.data.inspection.proposal import draft, list_doubts, note_what_was_seen, propose, share_dropped
from tracecvr.data.inspection.roles import Reading, read_roles
from tracecvr.data.inspection.said import NOTHING_SAID, Said
from tracecvr.data.inspection.tables import sample_tables
from tracecvr.data.own_log import schema as schemas
from tracecvr.data.own_log.cleaning import Cleaner
from tracecvr.data.own_log.rows import Rows
from tracecvr.data.own_log.schema import LogSchema
from tracecvr.data.own_log.write_schema import comment, write_toml


@dataclass(frozen=True)
class Inspection:
    """What was seen, and the schema that says so."""

    schema: LogSchema
    toml: str
    columns: Sequence[Profile]
    reading: Reading
    measured: Measured
    counts: dict[str, int]
    doubts: list[str]

    def to_json(self) -> dict[str, Any]:
        return {
            "schema": self.toml,
            "columns": [{"name": one.name, "holds": one.holds, "examples": one.examples()} for one in self.columns],
            "shape": self.reading.shape,
            "doubts": self.doubts,
            "left_out": self.reading.left_out | self.measured.leaks,
            "delays": self.measured.to_json(),
            "d_max_s": self.schema.labels.d_max,
            "horizons_s": list(self.schema.labels.horizons),
            "counts": self.counts,
        }


def inspect_files(
    given: Sequence[str], folder: Path, zone: str = "UTC", progress: Progress = no_progress, said: Said = NOTHING_SAID
) -> Inspection:
    """Look at files, folders or patterns and propose a schema that will be written to `folder`. Times without an offset
    are read in `zone`."""
    schemas.refuse_unknown_zone(zone, "zone")
    tables = sample_tables(given, said.tables)
    reading, columns = read_roles(tables, said)
    if not reading.features:
        raise UserError("no column is left that could be a feature: a log needs at least one")
    drafted = schemas.check(draft(reading, tables, given, folder, zone))
    first_look = measure(drafted, progress)
    leaks = {name: f"{why}. Is it known before the outcome?" for name, why in first_look.leaks.items()}
    if len(leaks) == len(reading.features):
        raise UserError(f"every feature gives the label away ({', '.join(leaks)}): there is nothing to learn from")
    schema, measured = propose(drafted, reading, first_look)
    counts = count_defects(schema, progress)
    if (share := share_dropped(counts)) > schema.defects.max_bad:
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
    return Inspection(schema, f"{head}\n{text}", list(columns.values()), reading, measured, counts, doubts)


def count_defects(schema: LogSchema, progress: Progress = no_progress) -> dict[str, int]:
    cleaner = Cleaner(Rows(schema), schema.labels.d_max)
    with Scratch(progress=progress) as scratch:
        clicks = sum(map(len, cleaner.parts(scratch)))
    dropped, counts = cleaner.report()
    return (
        {"rows": cleaner.rows.read, "clicks": clicks} | counts | {f"dropped_{name}": n for name, n in dropped.items()}
    )
