"""Taobao UserBehavior: the recipe by hand, history against a plain loop, and no future in it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from saving import save_table
from tracecvr.base.config import DAY, HOUR, MINUTE
from tracecvr.base.errors import UserError
from tracecvr.data.encoder import Encoder
from tracecvr.data.table import NEVER, ClickTable
from tracecvr.datasets.taobao import END, START, Taobao

Row = tuple[int, int, int, str, int]
"""User, item, category, behaviour, seconds since the start."""


def write(folder: Path, rows: Iterable[Row]) -> Path:
    path = folder / "UserBehavior.csv"
    path.write_text("".join(f"{u},{i},{c},{b},{START + t}\n" for u, i, c, b, t in rows))
    return path


def filler(user: int, rows: int = 10) -> list[Row]:
    """Rows before the first day: they make a user active without being clicks."""
    return [(user, 900_000 + i, 1, "pv", -5000) for i in range(rows)]


LATE: list[Row] = [*filler(99), (99, 99, 99, "pv", 3 * DAY)]
"""A click of the stream, so that there is one."""


def delays(folder: Path, rows: list[Row]) -> list[int | None]:
    """The delay of each action of the first click of user 1, item 7."""
    table, _ = Taobao().prepare(write(folder, [*filler(1), (1, 7, 8, "pv", HOUR), *rows, *LATE]))
    return [None if t == NEVER else int(t) - HOUR for t in table.action_ts[0]]


@pytest.mark.parametrize(
    ("raw", "delay"),
    [
        (-DAY, 12 * HOUR),
        (-1, 12 * HOUR),
        (0, 12 * HOUR),
        (10 * MINUTE, 12 * HOUR),
        (10 * MINUTE + 1, 3606),
        (HOUR, 6 * HOUR),
        (12 * HOUR - 1, 72 * HOUR - 6),
        (12 * HOUR, 72 * HOUR),
        (12 * HOUR + 1, 72 * HOUR),
        (8 * DAY, 72 * HOUR),
    ],
)
def test_purchases_are_stretched_with_atoms_at_12_and_72_hours(tmp_path: Path, raw: int, delay: int) -> None:
    assert delays(tmp_path, [(1, 7, 8, "buy", HOUR + raw)]) == [delay, None, None]


@pytest.mark.parametrize(
    ("raw", "cart", "favourite"), [(-1, 600, 120), (0, 0, 0), (5, 5, 5), (4 * DAY, 4 * DAY, 4 * DAY)]
)
def test_carts_and_favourites_are_not_stretched(tmp_path: Path, raw: int, cart: int, favourite: int) -> None:
    assert delays(tmp_path, [(1, 7, 8, "cart", HOUR + raw)]) == [None, cart, None]
    assert delays(tmp_path, [(1, 7, 8, "fav", HOUR + raw)]) == [None, None, favourite]


def test_actions_belong_to_user_item_and_category(tmp_path: Path) -> None:
    others: list[Row] = [(2, 7, 8, "buy", DAY), (1, 6, 8, "buy", DAY), (1, 7, 9, "buy", DAY)]
    assert delays(tmp_path, others) == [None, None, None]


def test_the_first_row_in_the_file_counts_not_the_earliest(tmp_path: Path) -> None:
    rows: list[Row] = [*filler(1), (1, 7, 8, "pv", 2 * HOUR), (1, 7, 8, "pv", HOUR), (1, 7, 8, "buy", 4 * HOUR)]
    table, _ = Taobao().prepare(write(tmp_path, [*rows, (1, 7, 8, "buy", 3 * HOUR), *LATE]))
    assert table.click_ts.tolist() == [2 * HOUR, 3 * DAY]
    assert table.click_id.tolist() == [10, 24]
    assert table.action_ts[0, 0] == 2 * HOUR + 6 * 2 * HOUR
    assert table.counts["repeated_rows"] == 2


def test_users_need_ten_different_rows(tmp_path: Path) -> None:
    nine: list[Row] = [*filler(1, 8), (1, 7, 8, "pv", HOUR), (1, 7, 8, "pv", DAY)]
    ten: list[Row] = [*filler(2, 9), (2, 7, 8, "pv", HOUR)]
    table, _ = Taobao().prepare(write(tmp_path, [*nine, *ten, *LATE]))
    assert table.x[:, 0].tolist() == [2, 99]
    assert table.counts == {
        "rows": 31,
        "clicks": 2,
        "repeated_rows": 1,
        "rows_of_users_below_10": 9,
        "clicks_outside_nine_days": 9 + 10,
        "dropped_conversion_before_click": 0,
        "dropped_negative_time": 0,
    }


def test_clicks_lie_in_the_nine_days(tmp_path: Path) -> None:
    times = (-1, 0, END - START - 1, END - START)
    rows: list[Row] = [(1, i, 8, "pv", t) for i, t in enumerate(times)]
    table, _ = Taobao().prepare(write(tmp_path, [*filler(1), *rows]))
    assert table.click_ts.tolist() == [0, 9 * DAY - 1]
    assert table.schema.observed_until == 12 * DAY
    assert "ends on day 9" in table.schema.notes[0]


def test_ids_are_taken_modulo_and_tables_are_shared(tmp_path: Path) -> None:
    rows: list[Row] = [(1_234_567, 7_654_321, 5_000_999, "pv", 0), (1_234_567, 1, 2, "pv", 3 * DAY)]
    table, _ = Taobao().prepare(write(tmp_path, [*filler(1_234_567), *rows]))
    assert table.x[0].tolist() == [567, 4321, 999] + [0] * 15
    assert table.x[1].tolist() == [567, 1, 2] + [0] * 12 + [4321, 999, 3]
    assert table.schema.tables == {"user": 1000, "item": 10_000, "category": 1000}
    assert [f.size for f in table.schema.features if f.one_hot] == [4] * 5
    assert (table.schema.window, table.schema.embedding_dim) == (12 * HOUR, 32)


def history(table: ClickTable, part: str) -> list[list[int]]:
    """The five slots of each click: items, categories or types."""
    first = {"item": 3, "category": 4, "type": 5}[part]
    return [[int(v) for v in row] for row in table.x[:, first::3]]


def test_history_is_the_last_five_clicks_oldest_first(tmp_path: Path) -> None:
    # Two clicks at the same second keep their order in the file; another user's clicks in between do not count.
    mine: list[Row] = [
        (1, item, item + 100, "pv", t) for item, t in ((3, 20), (1, 10), (4, 20), (2, 15), (5, 30), (6, 40))
    ]
    others: list[Row] = [(2, 50 + i, 8, "pv", 12 + i) for i in range(5)]
    last: list[Row] = [(1, 7, 107, "pv", 3 * DAY)]
    table, _ = Taobao().prepare(write(tmp_path, [*filler(1), *filler(2), *mine, *others, *last]))
    of_user_1 = table.x[:, 0] == 1
    items = [slots for slots, is_mine in zip(history(table, "item"), of_user_1, strict=True) if is_mine]
    assert table.x[of_user_1, 1].tolist() == [1, 2, 3, 4, 5, 6, 7]
    assert items == [
        [0, 0, 0, 0, 0],
        [0, 0, 0, 0, 1],
        [0, 0, 0, 1, 2],
        [0, 0, 1, 2, 3],
        [0, 1, 2, 3, 4],
        [1, 2, 3, 4, 5],
        [2, 3, 4, 5, 6],
    ]
    assert history(table, "category")[-1] == [102, 103, 104, 105, 106]


def test_causal_history_learns_of_actions_when_they_happen(tmp_path: Path) -> None:
    # Item 1 goes into the cart at 5 min and is bought at once, which the recipe puts at 12 h.
    rows: list[Row] = [(1, 1, 1, "pv", 0), (1, 1, 1, "cart", 5 * MINUTE), (1, 1, 1, "buy", 10 * MINUTE)]
    later = (5 * MINUTE - 1, 5 * MINUTE, 12 * HOUR - 1, 12 * HOUR)
    clicks: list[Row] = [(1, 2 + i, 1, "pv", t) for i, t in enumerate(later)]
    path = write(tmp_path, [*filler(1), *rows, *clicks, *LATE])
    causal, _ = Taobao().prepare(path)
    reference, _ = Taobao(history="reference").prepare(path)
    assert [slots[-i] for i, slots in enumerate(history(causal, "type")[1:5], start=1)] == [3, 2, 2, 1]
    assert [slots[-i] for i, slots in enumerate(history(reference, "type")[1:5], start=1)] == [1, 1, 1, 1]
    assert np.array_equal(causal.action_ts, reference.action_ts)


def plain_history(rows: list[Row], causal: bool) -> dict[tuple[int, int], list[tuple[int, int, int]]]:
    """History of each (user, item) click, by a loop over clicks. Rows are unique and in order of time."""
    when = {row[:4]: row[4] for row in rows}
    seen: dict[int, list[Row]] = defaultdict(list)
    history = {}
    for row in rows:
        user, item, _, behaviour, t = row
        if behaviour != "pv" or t < 0:
            continue
        slots = []
        for _, i, c, _, clicked in seen[user][-5:]:
            buy, cart = when.get((user, i, c, "buy")), when.get((user, i, c, "cart"))
            if buy is not None:
                delay = 2 * HOUR if buy - clicked <= 600 else buy - clicked
                buy = clicked + min(6 * delay, 3 * DAY)
            if cart is not None:
                cart = clicked + 600 if cart < clicked else cart
            paid = buy is not None and (not causal or buy <= t)
            carted = cart is not None and (not causal or cart <= t)
            slots.append((i, c, 1 if paid else 2 if carted else 3))
        history[user, item] = [(0, 0, 0)] * (5 - len(slots)) + slots
        seen[user].append(row)
    return history


@st.composite
def logs(draw: st.DrawFn) -> list[Row]:
    """Unique rows of two users in order of time, three days after which the stream has begun."""
    kinds = st.tuples(st.integers(1, 2), st.integers(1, 9), st.just(5), st.sampled_from(["pv", "pv", "cart", "buy"]))
    keys = draw(st.lists(kinds, unique=True, max_size=30))
    times = sorted(draw(st.lists(st.integers(0, 3 * DAY), min_size=len(keys), max_size=len(keys))))
    return [
        *filler(1),
        *filler(2),
        *((*k, t) for k, t in zip(keys, times, strict=True)),
        *filler(99),
        (99, 99, 9, "pv", 0),
        LATE[-1],
    ]


@given(logs(), st.booleans())
def test_history_agrees_with_a_plain_loop(
    tmp_path_factory: pytest.TempPathFactory, rows: list[Row], causal: bool
) -> None:
    table, _ = Taobao(history="causal" if causal else "reference").prepare(write(tmp_path_factory.mktemp("any"), rows))
    expected = plain_history(rows, causal)
    history = {(int(x[0]), int(x[1])): [tuple(int(v) for v in x[i : i + 3]) for i in range(3, 18, 3)] for x in table.x}
    assert {k: v for k, v in history.items() if k[0] < 99} == {k: v for k, v in expected.items() if k[0] < 99}


@given(logs(), st.integers(0, 3 * DAY))
def test_what_comes_later_changes_no_feature(
    tmp_path_factory: pytest.TempPathFactory, rows: list[Row], now: int
) -> None:
    folder = tmp_path_factory.mktemp("cut")
    whole, _ = Taobao().prepare(write(folder, rows))
    cut, _ = Taobao().prepare(write(folder, [r for r in rows if r[4] <= now or r[0] == 99]))
    known = (whole.click_ts <= now) & (whole.x[:, 0] < 99)
    assert np.array_equal(whole.x[known], cut.x[cut.x[:, 0] < 99])


def test_negative_times_are_dropped_and_counted(tmp_path: Path) -> None:
    """The published file has a few; by the recipe such an action never happened."""
    rows: list[Row] = [
        *filler(1),
        (1, 7, 8, "pv", HOUR),
        (1, 7, 8, "buy", -START - 1),
        (1, 3, 3, "pv", -START - 9),
        *LATE,
    ]
    table, _ = Taobao(max_bad=0.5).prepare(write(tmp_path, rows))
    assert table.counts["dropped_negative_time"] == 2
    assert table.action_ts[0].tolist() == [NEVER] * 3
    with pytest.raises(UserError, match="2 of 24 rows are bad"):
        Taobao().prepare(write(tmp_path, rows))


def test_a_table_comes_back_as_it_was(tmp_path: Path) -> None:
    path = write(tmp_path, [*filler(1), (1, 7, 8, "pv", 0), (1, 7, 8, "buy", DAY), *LATE])
    table, encoder = Taobao().prepare(path)
    assert Taobao().prepare(path)[0].fingerprint == table.fingerprint
    save_table(table, tmp_path / "table")
    encoder.save(tmp_path / "encoder.json")
    loaded = ClickTable.load(tmp_path / "table")
    assert (loaded.fingerprint, loaded.counts, loaded.schema) == (table.fingerprint, table.counts, table.schema)
    assert np.array_equal(loaded.action_ts, table.action_ts)
    assert Encoder.load(tmp_path / "encoder.json") == encoder


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("1,2,3,click,1511539300", "line 3, column 'behaviour': expected one of pv, cart, fav, buy, found 'click'"),
        ("1,2,3,,1511539300", "line 3, column 'behaviour': expected one of pv, cart, fav, buy, found nothing"),
        ("u1,2,3,pv,1511539300", "line 3, column 'user': expected a whole number from 0 to 2147483647, found 'u1'"),
        ("1,-2,3,pv,1511539300", "line 3, column 'item': expected a whole number from 0 to 2147483647, found -2"),
        ("1,2,4000000000,pv,1511539300", "line 3, column 'category': expected a whole number from 0 to 2147483647"),
        ("1,2,3,pv,2017-11-25", "line 3, column 'ts': expected a whole number from -2147483648"),
        ("1,2,3,pv,", "line 3, column 'ts': expected a whole number from -2147483648 to 2147483647, found nothing"),
        ("1,2,3,pv", "line 3: expected 5 columns separated by commas, found 4"),
        ("1,2,3,pv,1511539300,x", "line 3: expected 5 columns separated by commas, found 6"),
    ],
)
@pytest.mark.parametrize("last", [True, False])
def test_a_broken_line_is_named(tmp_path: Path, line: str, message: str, last: bool) -> None:
    good = "1,2,3,pv,1511539300\n"
    path = tmp_path / "UserBehavior.csv"
    path.write_text(good * 2 + (line if last else f"{line}\n{good}"))
    with pytest.raises(UserError) as error:
        Taobao().prepare(path)
    assert str(error.value).startswith(f"{path}: {message}")
    assert "\n" not in str(error.value)


def test_no_file_no_rows_no_clicks(tmp_path: Path) -> None:
    path = tmp_path / "UserBehavior.csv"
    with pytest.raises(UserError, match="no such file"):
        Taobao().prepare(path)
    path.write_text("")
    with pytest.raises(UserError, match="the file is empty"):
        Taobao().prepare(path)
    with pytest.raises(UserError, match="the log has no clicks"):
        Taobao().prepare(write(tmp_path, filler(1)))


def test_a_real_slice(real_log: Callable[[str], Path]) -> None:
    table, _ = Taobao().prepare(real_log("taobao_slice.csv"))
    assert (table.counts["rows"], table.counts["clicks"], table.x.shape) == (94_436, 67_129, (67_129, 18))
    delay = (table.action_ts[:, 0] - table.click_ts)[table.label]
    assert delay.min() > HOUR
    assert delay.max() == 72 * HOUR
    assert (delay <= 12 * HOUR).mean() == pytest.approx(0.71, abs=0.01)
    assert (table.label == (table.action_ts[:, 0] != NEVER)).all()
