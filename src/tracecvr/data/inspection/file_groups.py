"""Which files are one table: those of each day or month, and the folders of a data lake.

Files with equal columns are one table, unless their names say that some are clicks and others are what followed. Files
with different columns are told apart by their names without dates and numbers.
"""

from __future__ import annotations

import calendar
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from tracecvr.base.errors import UserError
from tracecvr.data.inspection import columns
from tracecvr.data.inspection.columns import Sampled
from tracecvr.data.inspection.words import ACTION, CLICK, CONVERSION, REFUND
from tracecvr.data.own_log.files import LogFile, folder_column, matching_files

_PLAIN = {"part", "data", "export", "log", "logs", "file", "chunk"}
"""Words that say nothing of what is in a file."""


def sample_tables(given: Sequence[str], said: Mapping[str, str]) -> list[Sampled]:
    """The tables of a log that is given by files, folders or patterns; `said`: what the rows of a file are."""
    if said:
        return [columns.sample([columns.sniff(Path(name))], topic, (name,)) for name, topic in said.items()]
    by_name = {name: matching_files(name, Path()) for name in given}
    paths = dict.fromkeys(path for matches in by_name.values() for path in matches)
    files = [columns.sniff(path) for path in paths]
    if len({(file.separator, file.header) for file in files if not file.parquet}) > 1:
        raise UserError("text files of one log have to agree in their separator and in whether they have a header")
    return [columns.sample(group, _topic_of(group), _shortest(group, by_name)) for group in _groups(files)]


def _groups(files: Sequence[LogFile]) -> list[Sequence[LogFile]]:
    """Files by what is in them."""
    groups: dict[str, list[LogFile]] = {}
    for file in files:
        groups.setdefault(_kind(file.path), []).append(file)
    mixed = groups.keys() & set(CLICK) and groups.keys() & {*CONVERSION, *REFUND, *ACTION}
    if len({frozenset(file.columns()) for file in files}) == 1 and not mixed:
        return [files]
    return list(groups.values())


def _kind(path: Path) -> str:
    """The word in the name of a file that tells it from files of other kinds."""
    topic = _topic(path)
    return next((word for word in (*CLICK, *REFUND, *ACTION, *CONVERSION) if word in topic), topic)


def _topic_of(group: Sequence[LogFile]) -> str:
    """What a group is about; a single file is named as it is, unless that says nothing."""
    path = group[0].path
    return path.stem if len(group) == 1 and _words(path.name.partition(".")[0]) else _topic(path)


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
