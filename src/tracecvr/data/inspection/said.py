"""What the user says of a log. It is taken as it is said, and refused only for a reason that the data give."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from tracecvr.base.config import refuse_missing
from tracecvr.base.errors import UserError
from tracecvr.data.inspection.columns import Profile, profile
from tracecvr.data.inspection.tables import Sampled
from tracecvr.data.own_log.schema import RESERVED


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
