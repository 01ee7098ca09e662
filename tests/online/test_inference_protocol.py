"""The Open Inference Protocol: the same scores as `/v1/score`, with tokens and limits as elsewhere.

The client of KServe does not install beside our pinned packages (it wants older ones), so what it sends is written out.
"""

from __future__ import annotations

import json
import struct
from typing import Any

import numpy as np
import pytest

from livestore import the_events
from service_client import Client
from test_service import GENEROUS, asked, ready, served
from tracecvr.online.service.auth import Token, Tokens, new_token
from tracecvr.online.store.store import Store

__all__ = ["ready"]  # a fixture

MODEL = "/v2/models/tracecvr"
CLICKS = [event["features"] for event in the_events() if event["type"] == "click"][:40]


def inference(clicks: list[dict[str, Any]], **changed: Any) -> dict[str, Any]:
    """A request as KServe's and Triton's clients send it."""
    inputs = [
        {"name": name, "shape": [len(clicks)], "datatype": "BYTES", "data": [click[name] for click in clicks]}
        for name in clicks[0]
    ]
    return {"id": "7", "inputs": inputs} | changed


def infer(url: str, content: Any, name: str = MODEL) -> tuple[int, Any]:
    return asked(url, "POST", f"{name}/infer", json.dumps(content).encode())


def test_a_client_of_the_protocol_gets_the_scores_that_others_get(ready: Store) -> None:
    with served(ready) as url, Client(url) as client:
        assert asked(url, "GET", "/v2/health/live") == (200, {"live": True})
        assert asked(url, "GET", "/v2/health/ready") == (200, {"ready": True})
        assert asked(url, "GET", f"{MODEL}/ready") == (200, {"name": "tracecvr", "ready": True})
        status, facts = asked(url, "GET", MODEL)
        assert (status, facts["name"], facts["platform"]) == (200, "tracecvr", "tracecvr")
        assert [one["name"] for one in facts["inputs"]] == list(CLICKS[0])
        for count in (1, 3, 40):
            expected = client.score(CLICKS[:count])
            status, answer = infer(url, inference(CLICKS[:count]))
            assert (status, answer["id"], answer["model_name"]) == (200, "7", "tracecvr")
            assert answer["model_version"] == str(expected["version"]) == facts["versions"][0]
            for output in answer["outputs"]:
                assert (output["shape"], output["datatype"]) == ([count], "FP64")
                assert output["data"] == [score[output["name"]] for score in expected["scores"]]
        assert [output["name"] for output in answer["outputs"]] == ["probability", "log_odds"]
        asked_for = inference(CLICKS[:2], outputs=[{"name": "log_odds"}])
        assert [output["name"] for output in infer(url, asked_for)[1]["outputs"]] == ["log_odds"]
        nested = inference(CLICKS[:2])
        for one in nested["inputs"]:
            one |= {"shape": [2, 1], "data": [[value] for value in one["data"]]}
        assert infer(url, nested)[1]["outputs"][0] == infer(url, inference(CLICKS[:2]))[1]["outputs"][0]


def test_a_missing_value_is_null(ready: Store) -> None:
    blank = dict.fromkeys(CLICKS[0])
    with served(ready) as url, Client(url) as client:
        status, answer = infer(url, inference([blank]))
        assert (status, answer["outputs"][1]["data"]) == (200, [client.score([blank])["scores"][0]["log_odds"]])


def as_bytes(content: dict[str, Any], kinds: dict[str, str]) -> tuple[bytes, str]:
    """A request with values after its JSON, as KServe's client sends NumPy arrays, and how long the JSON is."""
    values = b""
    for one in content["inputs"]:
        data, kind = one.pop("data"), kinds.get(one["name"])
        texts = [str(value).encode() for value in data]
        part = np.array(data, kind).tobytes() if kind else b"".join(struct.pack("<I", len(t)) + t for t in texts)
        one |= {"datatype": "FP64" if kind else "BYTES", "parameters": {"binary_data_size": len(part)}}
        values += part
    head = json.dumps(content).encode()
    return head + values, str(len(head))


def test_values_may_follow_the_json_as_bytes(ready: Store) -> None:
    with served(ready) as url:
        facts = asked(url, "GET", MODEL)[1]
        kinds = {one["name"]: "<f8" for one in facts["inputs"] if one["datatype"] == "FP64"}
        assert 0 < len(kinds) < len(facts["inputs"])
        body, length = as_bytes(inference(CLICKS[:3]), kinds)
        sent = {"Inference-Header-Content-Length": length, "Content-Type": "application/octet-stream"}
        answer = asked(url, "POST", f"{MODEL}/infer", body, headers=sent)
        assert answer == infer(url, inference(CLICKS[:3]))
        for wrong, size in ((body[:-1], length), (body, "x"), (body, "3"), (b"[]", "2")):
            status, said = asked(
                url, "POST", f"{MODEL}/infer", wrong, headers=sent | {"Inference-Header-Content-Length": size}
            )
            assert (status, "values as bytes" in said["error"]) == (422, True)


def test_a_body_is_json_whatever_it_is_called(ready: Store) -> None:
    form = {"Content-Type": "application/x-www-form-urlencoded"}  # of curl -d
    with served(ready) as url:
        body = json.dumps(inference(CLICKS[:2])).encode()
        assert asked(url, "POST", f"{MODEL}/infer", body, headers=form) == infer(url, inference(CLICKS[:2]))


def wrong_requests() -> list[tuple[Any, int, str]]:
    good = inference(CLICKS[:2])
    first, *others = good["inputs"]
    return [
        ([], 422, "dict"),
        ({"inputs": []}, 422, "one for each column"),
        ({"inputs": others}, 422, "is missing"),
        ({"inputs": [*good["inputs"], first]}, 422, "was given before"),
        ({"inputs": [first | {"shape": [3]}, *others]}, 422, "input 0: expected one value"),
        ({"inputs": [first | {"shape": []}, *others]}, 422, "input 0: expected one value"),
        ({"inputs": [first | {"shape": [1, 2]}, *others]}, 422, "input 0: expected one value"),
        ({"inputs": [first | {"shape": [1], "data": ["a"]}, *others]}, 422, "as many values"),
        ({"inputs": [first | {"name": "nothing"}, *others]}, 422, "is missing"),
        (good | {"outputs": [{"name": "x" * 999}]}, 422, "there is no output 'xxx"),
        (inference(CLICKS[:1] * 501), 413, "501 clicks"),
        (inference([CLICKS[0] | {"item": "x" * 2000}]), 422, "a text is longer"),
    ]


@pytest.mark.parametrize(("content", "status", "why"), wrong_requests())
def test_what_is_wrong_is_said(ready: Store, content: Any, status: int, why: str) -> None:
    with served(ready) as url:
        found, told = infer(url, content)
    assert (found, why in told["error"]) == (status, True), told


def test_tokens_and_limits_are_those_of_other_routes(ready: Store) -> None:
    token, digest = new_token()
    tokens = Tokens((Token("me", digest, frozenset(["ingest"])),))
    with served(ready, tokens, GENEROUS) as url:
        for method, path in (("GET", MODEL), ("GET", f"{MODEL}/ready"), ("POST", f"{MODEL}/infer")):
            assert asked(url, method, path)[0] == 401
            body = json.dumps(inference(CLICKS[:1])).encode() if method == "POST" else None
            assert asked(url, method, path, body, authorization=f"Bearer {token}")[0] == 403
        assert asked(url, "POST", f"{MODEL}/infer", b"x" * (1 << 20), authorization=f"Bearer {token}")[0] == 413
        assert asked(url, "GET", "/v2/health/ready")[0] == 200
    with served(ready) as url:
        assert asked(url, "GET", "/v2/models/another")[0] == 404
        assert infer(url, inference(CLICKS[:1]), "/v2/models/another")[0] == 404
