"""The tables of a log: which files are one table, how text files are written, and a sample of the rows.

Files with equal columns are one table, unless their names say that some are clicks and others are what followed. Files
with different columns are told apart by their names without dates and numbers.
"""

from __future__ import annotations

import calendar
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import polars as pl

from tracecvr.base.errors import UserError
from tracecvr.data.inspection.columns import ACTION, CLICK, CONVERSION, REFUND, Profile, profile
from tracecvr.data.own_log.files import LogFile, folder_column, is_empty, matching_files, open_file, share_keys

_SAMPLE = 200_000
"""Rows that are kept of each table: every row of a short one, every n-th of a long one."""

_SEPARATORS = (",", "\t", ";", "|")
_VALUE = re.compile(r"|[+-]?\d+(\.\d*)?|\d{4}-\d{2}-\d{2}.*|\d{1,2}[/.]\d{1,2}[/.]\d{4}.*")
"""A cell that cannot be the name of a column."""

_PLAIN = {"part", "data", "export", "log", "logs", "file", "chunk"}
"""Words that say nothing of what is in a file."""


@dataclass(frozen=True)
class Sampled:
    """A table of one file or several, its sample and its columns."""

    files: Sequence[LogFile]
    topic: str
    """What its name says of its rows."""
    given: tuple[str, ...]
    """Files, folders or patterns that stand for it."""
    rows: int
    columns: dict[str, Profile]
    partial: dict[str, str]
    """Columns that some files lack, and which."""

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
    words = [word for word in re.findall(r"[^\W\d_]+", text) if word not in _PLAIN and not _is_month(word)]
    return "_".join(words) if len("".join(words)) > 2 else ""


def _is_month(word: str) -> bool:
    return any(month.lower().startswith(word) for month in calendar.month_name[1:]) and len(word) > 2


def _shortest(group: Sequence[LogFile], by_name: Mapping[str, Sequence[Path]]) -> tuple[str, ...]:
    """A group as it was given: by the folders and patterns that stand for nothing else, else file by file."""
    left = {file.path: None for file in group}
    names = []
    for name, paths in by_name.items():
        if all(path in left for path in paths):
            names.append(name)
            left = {path: None for path in left if path not in paths}
    return (*names, *map(str, left))
