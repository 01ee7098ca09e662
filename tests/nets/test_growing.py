"""Which values of a growing column have rows: admission and eviction against a plain dictionary."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tracecvr.data.table import Growth
from tracecvr.nets.growing import GrowingMap

VALUES = [0, 1, 5, 7, 9, 2**31, 2**31 + 1, 2**40, 2**61, 2**62 - 1]
GROWTH = Growth(after=2, forget=10, most=5)


@dataclass
class Value:
    count: int = 0
    seen: int = 0
    row: int = 0


class Admission(RuleBasedStateMachine):
    """Intervals of clicks go by, with pauses; states are saved and loaded in between."""

    def __init__(self) -> None:
        super().__init__()
        self.map, self.plain, self.now = GrowingMap(GROWTH), dict[int, Value](), 0
        self.fresh: list[int] = []
        self.before: dict[int, Value] = {}

    @rule(clicks=st.lists(st.sampled_from(VALUES), min_size=1, max_size=12), pause=st.integers(1, 7))
    def interval(self, clicks: list[int], pause: int) -> None:
        self.now += pause
        self.map.see(torch.tensor(clicks), torch.full((len(clicks),), self.now))
        self.fresh = self.map.settle(self.now).tolist()
        self.before = {value: Value(v.count, v.seen, v.row) for value, v in self.plain.items()}
        for click in clicks:
            one = self.plain.setdefault(click, Value())
            one.count += 1
            one.seen = self.now
        self.plain = {value: v for value, v in self.plain.items() if self.now - v.seen < GROWTH.forget}
        waiting = [value for value, v in self.plain.items() if not v.row and v.count >= GROWTH.after]
        for value in sorted(waiting, key=lambda value: (-self.plain[value].count, value)):
            free = set(range(1, GROWTH.most)) - {v.row for v in self.plain.values()}
            if free:
                self.plain[value].row = min(free)
        without = sorted((v for v in self.plain if not self.plain[v].row), key=lambda v: (-self.plain[v].seen, v))
        for value in without[GROWTH.most :]:
            del self.plain[value]

    @precondition(lambda self: self.plain)
    @rule()
    def restart(self) -> None:
        again = GrowingMap(GROWTH)
        again.load_state({name: value.clone() for name, value in self.map.state().items()})
        self.map = again

    @invariant()
    def rows_are_those_of_the_dictionary(self) -> None:
        expected = [self.plain.get(value, Value()).row for value in VALUES]
        assert self.map.rows(torch.tensor(VALUES)).tolist() == expected
        own = [row for row in expected if row]
        assert len(own) == len(set(own))
        assert max(own, default=0) < self.map.capacity <= GROWTH.most

    @invariant()
    def fresh_rows_are_those_that_changed_hands(self) -> None:
        changed = [v.row for value, v in self.plain.items() if v.row and self.before.get(value, Value()).row != v.row]
        assert sorted(changed) == sorted(self.fresh) if self.now else not self.fresh

    @invariant()
    def nothing_is_kept_of_values_that_were_forgotten(self) -> None:
        assert self.map.key.tolist() == sorted(self.plain)
        assert self.map.count.tolist() == [self.plain[value].count for value in sorted(self.plain)]


TestAdmission = Admission.TestCase
TestAdmission.settings = settings(max_examples=60, stateful_step_count=20, deadline=None)


def test_tables_double_up_to_their_limit() -> None:
    growing, sizes = GrowingMap(Growth(after=1, forget=100, most=3000)), []
    for values in (range(10), range(1500), range(5000)):
        growing.see(torch.tensor(values), torch.ones(len(values), dtype=torch.int64))
        sizes.append((len(growing.settle(1)), growing.capacity))
    assert sizes == [(10, 1024), (1490, 2048), (1499, 3000)]
    assert int((growing.rows(torch.arange(5000)) > 0).sum()) == 2999
