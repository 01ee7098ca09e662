"""The tables of a log: which files are one table, how text files are written, a sample of the rows, and what is said.

Files with equal columns are one table, unless their names say that some are clicks and others are what followed. Files
with different columns are told apart by their names without dates and numbers.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import polars as pl

from tracecvr.base.config import refuse_missing
from tracecvr.base.errors import UserError
from tracecvr.data.inspection.columns import ACTION, CLICK, CONVERSION, REFUND, Profile, profile
from tracecvr.data.own_log.files import LogFile, folder_column, is_empty, matching_files, open_file, share_keys
from tracecvr.data.own_log.schema import RESERVED

_SAMPLE = 200_000
"""Rows that are kept of each table: every row of a short one, every n-th of a long one."""

_SEPARATORS = (",", "\t", ";", "|")
_VALUE = re.compile(r"|[+-]?\d+(\.\d*)?|\d{4}-\d{2}-\d{2}.*|\d{1,2}[/.]\d{1,2}[/.]\d{4}.*")
"""A cell that cannot be the name of a column."""

_PLAIN = {"part", "data", "export", "log", "logs", "file", "chunk"}
"""Words that say nothing of what is in a file."""

_MONTH = re.compile(
    "jan(uary)?|feb(ruary)?|mar(ch)?|apr(il)?|may|june?|july?|aug(ust)?|sept?(ember)?|oct(ober)?|nov(ember)?|dec(ember)?"
)


@dataclass(frozen=True)
class Sampled:
    """A table of one file or several, its sample and its columns."""

    files: Sequence[LogFile]
    topic: str  # what its name says of its rows
    given: tuple[str, ...]  # files, folders or patterns that stand for it
    rows: int
    columns: dict[str, Profile]
    partial: dict[str, str]  # columns that some files lack, and which

    @property
    def name(self) -> str:
        return self.files[0].path.name if len(self.files) == 1 else f"{len(self.files)} files of {self.topic!r}"


def sample_tables(given: Sequence[str], said: Mapping[str, str]) -> list[Sampled]:
    """The tables of a log that is given by files, folders or patterns; `said`: what the rows of a file are."""
    if said:
        return [_sample([sniff(Path(name))], topic, (name,)) for name, topic in said.items()]
    by_name = {name: matching_files(name, Path()) for name in given}
    by_name = {name: [path for path in paths if not is_empty(path)] for name, paths in by_name.items()}
    paths = dict.fromkeys(path for matches in by_name.values() for path in matches)
    if not paths:
        raise UserError(f"{given[0]}: no rows: the file is empty")
    files = [sniff(path) for path in paths]
    if len({(file.separator, file.header) for file in files if file.is_text}) > 1:
        raise UserError("text files of one log have to agree in their separator and in whether they have a header")
    return [_sample(group, _topic(group[0].path), _shortest(group, by_name)) for group in _groups(files)]


def sniff(path: Path) -> LogFile:
    """The file with the separator that its first lines have most of, and whether its first line is a header."""
    file = open_file(path)
    if not file.is_text:
        return file
    lines = file.first_lines(50)
    if not lines:
        raise UserError(f"{path}: no rows: there is nothing to look at")
    separator = max(_SEPARATORS, key=lambda mark: min(line.count(mark) for line in lines))
    first = [cell.strip().strip('"') for cell in lines[0].split(separator)]
    header = len(set(first)) == len(first) and not any(map(_VALUE.fullmatch, first))
    return replace(file, separator=separator, header=header)


def _sample(group: Sequence[LogFile], topic: str, given: tuple[str, ...]) -> Sampled:
    """Look at every row of files and keep a sample of them."""
    group = share_keys(group)
    own = {file.path: file.columns() for file in group}
    every_column = dict.fromkeys(name for columns in own.values() for name in columns)
    lacking = {name: next((path for path in own if name not in own[path]), None) for name in every_column}
    names = [name for name, path in lacking.items() if path is None]
    every, rows, kept = max(1, -(-sum(file.rows() for file in group) // _SAMPLE)), 0, []
    for file in group:
        for batch in file.batches(names):
            kept.append(batch.gather_every(every, -rows % every))
            rows += len(batch)
    if not rows:
        raise UserError(f"{group[0].path}: no rows: there is nothing to look at")
    frame = pl.concat(kept, how="vertical_relaxed")
    folders = {name for file in group for name in file.folder_columns}
    profiles = {name: replace(profile(frame[name]), of_folder=name in folders) for name in names}
    partial = {name: f"not in every file: {path.name} lacks it" for name, path in lacking.items() if path is not None}
    return Sampled(group, topic, given, rows, profiles, partial)


def _groups(files: Sequence[LogFile]) -> list[Sequence[LogFile]]:
    """Files by what is in them: by the word in their names that tells kinds of rows apart."""
    groups: dict[str, list[LogFile]] = {}
    for file in files:
        topic = _topic(file.path)
        kind = next((word for word in (*CLICK, *REFUND, *ACTION, *CONVERSION) if word in topic), topic)
        groups.setdefault(kind, []).append(file)
    mixed = groups.keys() & set(CLICK) and groups.keys() & {*CONVERSION, *REFUND, *ACTION}
    one_table = len({frozenset(file.columns()) for file in files}) == 1 and not mixed
    return [files] if one_table else list(groups.values())


def _topic(path: Path) -> str:
    """What the name of a file, or else of its folder, says of its rows."""
    folders = [part for part in path.absolute().parent.parts[::-1] if folder_column(part) is None]
    names = (path.name.partition(".")[0], *folders)
    return next((words for name in names if (words := _words(name))), path.stem)


def _words(name: str) -> str:
    """A name without what stands for a day, a month or a part of a file; nothing if it says no more than that."""
    text = re.split(r"\d", re.sub(r"^[\d\W_]+", "", name.lower()))[0]
    words = [word for word in re.findall(r"[^\W\d_]+", text) if word not in _PLAIN and not _MONTH.fullmatch(word)]
    return "_".join(words) if len("".join(words)) > 2 else ""


def _shortest(group: Sequence[LogFile], by_name: Mapping[str, Sequence[Path]]) -> tuple[str, ...]:
    """A group as it was given: by the folders and patterns that stand for nothing else, else file by file."""
    left = {file.path: None for file in group}
    names = []
    for name, paths in by_name.items():
        if all(path in left for path in paths):
            names.append(name)
            left = {path: None for path in left if path not in paths}
    return (*names, *map(str, left))


# What the user says of a log. It is taken as it is said, and refused only for a reason that the data give.


@dataclass(frozen=True)
class Said:
    """Columns and tables whose meaning is known; what is left out is guessed."""

    id: tuple[str, ...] = ()
    click_time: str | None = None
    conversion_time: str | None = None
    converted: str | None = None
    delay: str | None = None
    actions: Mapping[str, str] = field(default_factory=dict)
    """Of a table with a row per click: the column of each other action's time, `refund` included."""
    features: tuple[str, ...] | None = None
    tables: Mapping[str, str] = field(default_factory=dict)  # of each file: what its rows are

    @property
    def of_clicks(self) -> dict[str, str]:
        """Columns of the table of clicks, each with the name of what was said."""
        named = {"click_time": self.click_time, "converted": self.converted, "delay": self.delay}
        if len(self.tables) < 2:
            named["conversion_time"] = self.conversion_time
        named |= {f"actions: {name}": column for name, column in self.actions.items()}
        columns = {column: what for what, column in named.items() if column is not None}
        return dict.fromkeys(self.id, "id") | dict.fromkeys(self.features or (), "features") | columns

    @property
    def follows(self) -> bool:
        """Whether columns of the table of clicks are said to tell what followed."""
        return bool(self.conversion_time or self.converted or self.delay or self.actions) and len(self.tables) < 2

    def time_of(self, columns: Iterable[str]) -> str | None:
        """The column of times in a table of what followed, if it was said."""
        there = set(columns)
        return next((name for name in (self.conversion_time, self.click_time) if name in there), None)

    def apply_to(self, log: Sampled, is_clicks: bool) -> Sampled:
        """A table whose columns hold what is said of them."""
        said = self.of_clicks if is_clicks else dict.fromkeys(self.id, "id")
        if not is_clicks and (time := self.time_of(log.columns)) is not None:
            said[time] = f"{log.topic}: time"
        columns = dict(log.columns)
        for name, what in said.items():
            refuse_missing([name], columns, f"{what}: {log.name}")
            columns[name] = _believe(columns[name], what)
        return replace(log, columns=columns)


NOTHING_SAID = Said()


def _believe(one: Profile, what: str) -> Profile:
    """A column that holds what is said of it, if that can be."""
    plain = replace(one, unit=None, relative=False, naive=False, absent=(), either=False, of_folder=False)
    reason = None
    if what == "id":
        if one.filled < 0.5 * one.rows:
            reason = f"is empty in {one.nulls:,} of {one.rows:,} rows that were looked at"
    elif what == "features":
        reason = refuse_feature(one, asked=True)
    elif what == "converted":
        if not plain.is_label:
            reason = f"does not say yes or no of every click, but {one.examples()}"
    elif what == "delay":
        plain = replace(profile(one.values.alias("delay")), name=one.name)
        if not plain.number:
            reason = "is not a number of seconds from the click to the conversion"
    else:
        plain = replace(profile(one.values.alias("time")), name=one.name)
        if plain.unit is None:
            wanted = "expected date-times, ISO 8601 text or numbers since 1970"
            reason = f"does not hold times, such as {one.examples() or 'nothing'}: {wanted}"
    if reason is not None:
        advice = "; leave it out" if what == "features" else ""
        raise UserError(f"{what}: column {one.name!r} {reason}{advice}")
    return plain


def refuse_feature(one: Profile, asked: bool) -> str | None:
    """Why a model cannot learn from a column, if so; one that is asked for is refused only if nothing can."""
    if not one.distinct:
        return "is empty, or nested, on clicks"
    if one.distinct == 1 and not one.nulls:
        return f"has one value in every row ({one.examples()})"
    if one.comma:
        return (
            f"has numbers whose commas may stand before decimals or between thousands ({one.examples()}): write 1234.5"
        )
    if one.unit is not None and not (asked and one.number):
        return "holds times: make a number or a category of them first, such as the hour"
    if asked:
        return None
    if one.name in RESERVED:
        return f"has {one.distinct:,} different values in {one.filled:,} rows; rename it if it is a feature"
    if one.of_folder:
        return "is from the names of folders"
    names = one.named_id or not one.number
    if one.filled > 20 and (one.distinct > 0.9 * one.filled if names else one.whole and one.distinct == one.filled):
        return "has another value in nearly every row"
    return None
