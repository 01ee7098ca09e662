"""Raw values that are not what their column expects: one rule offline and live, counted, and nobody is harmed."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from conftest import Call
from hypothesis import example, given
from hypothesis import strategies as st

from alone import encode_alone
from livestore import Made, finish, learnt, send, the_events
from own_logs import GOOD, logs
from test_service import asked, served
from tracecvr.base.config import HOUR
from tracecvr.data.encoder import Binned, Column, Encoder, Hashed, Modulo, RowEncoder, Vocabulary
from tracecvr.data.table import Schema
from tracecvr.online.learner import archive
from tracecvr.online.learner.learner import ledger_of
from tracecvr.online.log.events import CLICK, Event, Reader
from tracecvr.online.store.store import Settings, Store
from tracecvr.online.upkeep.status import status_of
from tracecvr.online.upkeep.verify_log import verify_log

ENCODER = Encoder(
    (
        Hashed("h", 50),
        Modulo("m", 7),
        Binned("b", 8, low=-1.0, high=20.0),
        Binned("l", 8, scale="log", low=0.0, high=5.0),
        Modulo("both", 11),
        Hashed("both", 50),
        Vocabulary("h", 5, words=("3", "NaN.", "true")),
    )
)
READER = Reader(Schema("test", ENCODER.features, ("conversion",), (5,), 5, 100, 10, 10_000), ENCODER)
NUMBERS = st.integers() | st.integers(-5, 30) | st.floats() | st.floats(-5, 30)
TEXTS = st.text(max_size=5) | st.sampled_from(
    ["3", "3.0", "-1.5", "1e3", "n/a", "nan", "inf", "true", "1e999", "9" * 30]
)
JSON = st.recursive(
    st.none() | st.booleans() | NUMBERS | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)
CLICKS = st.lists(st.fixed_dictionaries(dict.fromkeys(READER.features, JSON)), min_size=1, max_size=6)


@example([dict.fromkeys(READER.features, 1 << 63)])
@example([dict.fromkeys(READER.features, 1 << 2000)])
@given(CLICKS)
def test_values_among_others_of_any_type_have_the_codes_that_they_have_alone(clicks: list[dict[str, Any]]) -> None:
    ids, unreadable = READER.encode_clicks([[click[name] for name in READER.features] for click in clicks])
    alone = encode_alone(ENCODER, {name: [click[name] for click in clicks] for name in READER.features})
    assert (ids.tolist(), unreadable) == alone
    assert all(
        0 <= code < column.size for row in ids.tolist() for code, column in zip(row, ENCODER.columns, strict=True)
    )


SCALARS = st.none() | st.booleans() | st.integers(-(2**63) + 1, 2**63 - 1) | st.floats(-5, 30) | st.text(max_size=5)
SENT = st.fixed_dictionaries({"h": SCALARS, "m": JSON, "b": JSON, "l": JSON, "both": SCALARS})


@given(st.lists(SENT, min_size=1, max_size=6))
def test_clicks_with_any_values_where_numbers_are_read_are_kept_and_mean_what_was_sent(
    clicks: list[dict[str, Any]],
) -> None:
    sent = [{"type": "click", "click_id": 1, "ts": 1, "features": click} for click in clicks]
    bodies = [READER.read(event).body or "" for event in sent]
    ids, unreadable = READER.encode_and_count(bodies)
    expected = encode_alone(ENCODER, {name: [click[name] for click in clicks] for name in READER.features})
    assert (ids.tolist(), unreadable) == expected


@pytest.mark.parametrize(
    ("value", "modulo", "binned", "unreadable"),
    [
        (3, 3, 3, ""),
        (3.0, 3, 3, ""),
        ("3", 3, 3, ""),
        ("3.0", 3, 3, ""),
        (9.9, 2, 9, ""),
        (-1, 6, 0, ""),
        (-0.5, 6, 0, ""),
        (1e18, 10**18 % 7, 15, ""),
        ("9007199254740993", 9007199254740993 % 7, 15, ""),
        (None, 0, 0, ""),
        (1 << 70, 0, 15, "m"),
        ("n/a", 0, 0, "mb"),
        ("", 0, 0, "mb"),
        (True, 0, 0, "mb"),
        (float("nan"), 0, 0, "mb"),
        (float("inf"), 0, 0, "mb"),
        ([3], 0, 0, "mb"),
        ({"a": 3}, 0, 0, "mb"),
    ],
)
def test_how_a_number_is_read(value: Any, modulo: int, binned: int, unreadable: str) -> None:
    encoder = Encoder((Modulo("m", 7), Binned("b", 16, low=0.0, high=16.0)))
    reader = Reader(Schema("test", encoder.features, ("conversion",), (5,), 5, 100, 10, 10_000), encoder)
    click = {"type": "click", "click_id": 1, "ts": 1, "features": {"m": value, "b": value}}
    ids, count = reader.encode_and_count([reader.read(click).body or ""])
    assert ids.tolist() == [[modulo, binned]]
    assert "".join(count) == unreadable


@pytest.mark.parametrize("column", [Hashed("price", 64), Binned("price", 16), Binned("price", 16, scale="log")])
def test_what_prepare_makes_of_a_text_is_what_is_made_of_it_live(column: Column, tmp_path: Path) -> None:
    texts = ["12.5", "7", "n/a", "", "1e3", "nan", " 7", "true", "-inf", "0.25", "9" * 30] * 15
    rows = [f"{i},{1_767_225_600 + i * HOUR},,{text}\n" for i, text in enumerate(texts)]
    (tmp_path / "log.csv").write_text("id,at,bought,price\n" + "".join(rows))
    scale = f', scale = "{column.scale}"' if isinstance(column, Binned) else ""
    rule = f'price = {{kind = "{column.kind}", size = {column.size}{scale}}}\n'
    dataset = logs(tmp_path, GOOD.partition("site =")[0] + rule)
    table, encoder = dataset.prepare(None)
    live, unreadable = RowEncoder(encoder, ["price"]).encode([[text or None] for text in texts])
    assert table.x.tolist() == live.tolist()
    missing = texts.count("") + unreadable["price"]
    assert table.counts["null_feature"] == missing == (15 if isinstance(column, Hashed) else 90)


# A live model.

PILLS = ("[3,1,7]", "[3.0,1,7]", '["n/a",true,7]', '[2.5,"1","x"]')
"""Features of clicks of mixed types, as a log may hold them."""


def poisoned(store: Store) -> Store:
    start = store.grid.bounds(1)[0]
    log = store.log()
    log.append([Event(f"c{9**9 + i}", CLICK, 9**9 + i, start + i, None, body) for i, body in enumerate(PILLS)])
    log.close()
    return store


def test_a_log_that_holds_mixed_values_is_learnt_and_they_are_counted_the_same_in_every_replay(
    made: Made, hourly: Path
) -> None:
    store = poisoned(made("vanilla", Settings(lateness=HOUR, keep=2), hourly))
    send(store, the_events())
    finish(store)
    learnt(store)
    assert status_of(store)["bad_values"] == {"segment": 1, "device": 1}
    assert not [name for name in status_of(store)["joined"] if name.startswith("bad")]
    again = ledger_of(store, store.engine())
    while again.done < store.log().closed():
        again.advance()
    assert archive.compact(store) > 100
    assert verify_log(store).same
    archived = ledger_of(store, store.engine())
    while archived.done < again.done:
        archived.advance()
    assert archived.counts == again.counts
    assert archived.counts["bad_values.segment"] == 1


def test_a_bad_value_is_scored_as_missing_and_reported_everywhere(made: Made) -> None:
    store = made("vanilla")
    learnt(store)
    event = the_events()[0]
    features = event["features"]
    with served(store) as url:

        def score(**changed: Any) -> Any:
            status, answer = asked(url, "POST", "/v1/score", json.dumps({"features": [features | changed]}).encode())
            assert status == 200, answer
            return answer

        missing = score(segment=None)
        assert "bad_values" not in missing
        for value in ("n/a", True, float("nan"), float("inf"), 1 << 70):
            assert score(segment=value) == missing | {"bad_values": {"segment": 1}}
        assert score(segment=3) == score(segment=3.0)
        click = {"click_id": event["click_id"], "ts": event["ts"], "features": features | {"segment": "n/a"}}
        status, answer = asked(url, "POST", "/v1/clicks", json.dumps({"clicks": [click]}).encode())
        assert (status, answer["bad_values"]) == (200, {"segment": 1})
        status, answer = asked(url, "GET", f"/v1/clicks/{event['click_id']}")
        assert (status, answer["final"]) == (200, False)
        send(store, the_events()[1:])
        finish(store)
        learnt(store)
        assert asked(url, "GET", "/v1/status")[1]["bad_values"] == {"segment": 1}
    with served(store) as url:
        assert 'tracecvr_bad_values{column="segment"} 1.0' in _metrics(url)


def _metrics(url: str) -> str:
    for _ in range(200):
        text = str(asked(url, "GET", "/metrics")[1])
        if "tracecvr_bad_values{" in text:
            return text
        time.sleep(0.05)
    return text


def test_a_bad_value_in_a_file_is_learnt_as_missing_and_status_counts_it(
    made: Made, tmp_path: Path, call: Call, capsys: pytest.CaptureFixture[str]
) -> None:
    store = made("vanilla")
    events = [dict(event) for event in the_events()[:300]]
    clicks = [event for event in events if event["type"] == "click"]
    clicks[0]["features"] = clicks[0]["features"] | {"segment": "n/a", "device": [1]}
    clicks[1]["features"] = clicks[1]["features"] | {"segment": 1.0}
    (tmp_path / "events.jsonl").write_text("".join(f"{json.dumps(event)}\n" for event in events))
    assert call("ingest", store.folder, tmp_path / "events.jsonl") == 0
    assert call("tick", store.folder) == 0
    capsys.readouterr()
    assert call("status", store.folder) == 0
    said = capsys.readouterr().out
    assert "bad_values.segment: 1\n" in said
    assert "bad_values.device: 1\n" in said
    for line in (b'{"type": "click", "ts": ' + b"1" * 5000 + b"}\n", b'\xff\xfe{"type": "click"}\n'):
        (tmp_path / "events.jsonl").write_bytes(line)
        assert call("ingest", store.folder, tmp_path / "events.jsonl") == 2
        assert "line 1" in capsys.readouterr().err
