"""The whole look at a log: sample, guess, clean by a draft, propose, and count by what is proposed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tracecvr.config import DAY
from tracecvr.errors import UserError
from tracecvr.files import parsed_toml
from tracecvr.inspection import columns, measured
from tracecvr.inspection.columns import Profile
from tracecvr.inspection.guess import Guess, guessed
from tracecvr.inspection.measured import Measured
from tracecvr.inspection.proposal import DRAFT_ORIGINS, Proposal
from tracecvr.ownlog import files, schema
from tracecvr.ownlog.clean import COUNTED, DROPPED, Cleaner
from tracecvr.ownlog.rows import Rows
from tracecvr.ownlog.schema import LogSchema
from tracecvr.ownlog.times import origin_of
from tracecvr.scratch import Progress, Scratch, silent


@dataclass(frozen=True)
class Found:
    """What was seen, and the schema that says so."""

    toml: str
    columns: Sequence[Profile]
    guess: Guess
    measured: Measured
    counts: dict[str, int]

    @property
    def doubts(self) -> list[str]:
        """Where another reading is possible."""
        return self.guess.doubts + self.measured.doubts

    def to_json(self) -> dict[str, Any]:
        labels = self.measured.labels
        return {
            "schema": self.toml,
            "columns": [
                dict(zip(("name", "holds", "examples"), row, strict=True)) for row in columns.shown(self.columns)
            ],
            "shape": self.guess.shape,
            "doubts": self.doubts,
            "left_out": self.guess.left_out | self.measured.leaks,
            "delays": self.measured.to_json(),
            "d_max_s": labels.d_max,
            "horizons_s": list(labels.horizons),
            "counts": self.counts,
        }


def look(given: Sequence[str], folder: Path, zone: str = "UTC", progress: Progress = silent) -> Found:
    """Look at files, folders or patterns and propose a schema that will be written to `folder`. Times without an offset
    are read in `zone`."""
    logs = [columns.sampled(path) for name in given for path in files.found(name, Path())]
    texts = {(log.file.separator, log.file.header) for log in logs if not log.file.parquet}
    if len(texts) > 1:
        raise UserError("text files of one log have to agree in their separator and in whether they have a header")
    guess, profiles = guessed(logs)
    if not guess.features:
        raise UserError("no column is left that could be a feature: a log needs at least one")
    draft = Proposal(given, folder, logs, guess, zone)
    found = measured.measure(_parsed(draft), progress)
    if set(found.leaks) >= {one.name for one in guess.features}:
        raise UserError(
            f"every feature gives the label away ({', '.join(found.leaks)}): there is nothing to learn from"
        )
    final = replace(draft, **_moved(draft, found))
    counts = counted(_parsed(final), progress)
    text = replace(final, counts=counts).text()
    return Found(text, list(profiles.values()), guess, final.found or found, counts)


def counted(described: LogSchema, progress: Progress = silent) -> dict[str, int]:
    """The defects of a log, with the code that `prepare` uses."""
    rows, clicks = Rows(described), 0
    with Scratch(progress=progress) as scratch:
        for part in Cleaner(rows, described.labels.d_max).parts(scratch):
            clicks += len(part)
    dropped = {f"dropped_{name}": rows.dropped[name] for name in DROPPED}
    return {"rows": rows.read, "clicks": clicks} | {name: rows.counts[name] for name in COUNTED} | dropped


def _parsed(proposal: Proposal) -> LogSchema:
    path = proposal.folder / "schema.toml"
    return schema.parsed(path, parsed_toml(path, proposal.text()))


def _moved(draft: Proposal, found: Measured) -> dict[str, Any]:
    """Times since an origin that fits the log: the first midnight."""
    relative = draft.guess.click.relative
    start, _ = origin_of(schema.Times(origin=DRAFT_ORIGINS[relative]))
    origin = (start + found.first_click) // DAY * DAY
    shift = origin - start
    first, last, seen = found.first_click - shift, found.last_click - shift, found.last_seen - shift
    text = str(origin) if relative else datetime.fromtimestamp(origin, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return {"found": replace(found, first_click=first, last_click=last, last_seen=seen), "origin": text}
