"""What somebody says of a log. It is taken as it is said, and refused only for a reason that the data give."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from tracecvr.base.config import nearest
from tracecvr.base.errors import UserError
from tracecvr.data.inspection.columns import Profile, Sampled, profile


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
    tables: Mapping[str, str] = field(default_factory=dict)
    """Of each file: what its rows are."""

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
        columns = dict(log.columns)
        for name, what in (self.of_clicks if is_clicks else dict.fromkeys(self.id, "id")).items():
            if name not in columns:
                hint = nearest(name, columns)
                raise UserError(
                    f"{what}: {log.name}: column {name!r} is missing{hint}; there are: {', '.join(columns)}"
                )
            columns[name] = _BELIEVED.get(what, _as_time)(columns[name], what)
        if not is_clicks and (time := self.time_of(columns)) is not None:
            columns[time] = _as_time(columns[time], f"{log.topic}: time")
        return replace(log, columns=columns)


NOTHING_SAID = Said()


def _as_time(one: Profile, what: str) -> Profile:
    known = profile(one.values.alias("time"))
    if known.unit is None:
        raise UserError(
            f"{what}: column {one.name!r} does not hold times, such as {one.examples() or 'nothing'}: expected "
            "date-times, ISO 8601 text or numbers since 1970"
        )
    return replace(known, name=one.name, values=one.values)


def _as_id(one: Profile, what: str) -> Profile:
    if one.filled < 0.5 * one.rows:
        raise UserError(
            f"{what}: column {one.name!r} is empty in {one.nulls:,} of {one.rows:,} rows that were looked at"
        )
    return _without_times(one)


def _as_delay(one: Profile, what: str) -> Profile:
    known = profile(one.values.alias("delay"))
    if not known.number:
        raise UserError(f"{what}: column {one.name!r} is not a number of seconds from the click to the conversion")
    return replace(known, name=one.name)


def _as_label(one: Profile, what: str) -> Profile:
    plain = _without_times(one)
    if not plain.is_label:
        raise UserError(f"{what}: column {one.name!r} does not say yes or no of every click, but {one.examples()}")
    return plain


def _as_feature(one: Profile, what: str) -> Profile:
    reason = None
    if not one.distinct:
        reason = "is empty, or nested"
    elif one.unit is not None and not one.number:
        reason = "holds times: make a number or a category of them first, such as the hour"
    elif one.comma:
        reason = f"has numbers with a comma ({one.examples()}): write 1234.5"
    elif one.distinct == 1 and not one.nulls:
        reason = f"has one value in every row ({one.examples()})"
    if reason is not None:
        raise UserError(f"{what}: column {one.name!r} {reason}; leave out what cannot be learnt from")
    return _without_times(one)


def _without_times(one: Profile) -> Profile:
    return replace(one, unit=None, relative=False, naive=False, absent=(), either=False, of_folder=False)


_BELIEVED = {"id": _as_id, "features": _as_feature, "delay": _as_delay, "converted": _as_label}
