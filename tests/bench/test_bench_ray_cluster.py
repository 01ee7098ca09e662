"""Reaching a Ray cluster: what is said when there is none."""

from __future__ import annotations

import pytest

from tracecvr.base.errors import UserError
from tracecvr.bench.engines.ray import connect


def refused(address: str | None) -> str:
    with pytest.raises(UserError) as raised, connect(address):
        pass
    return str(raised.value)


@pytest.mark.scale
@pytest.mark.parametrize(
    ("address", "told"),
    [
        ("127.0.0.1:1", "127.0.0.1:1 could not be reached: Connection refused"),
        ("ray://127.0.0.1:1", "Connection refused"),
        ("127.0.0.1:first", "'first' is no port"),
        ("elsewhere", "give auto, HOST:PORT or ray://HOST:PORT"),
    ],
)
def test_a_cluster_that_is_not_there_is_told_at_once(address: str, told: str) -> None:
    assert told in refused(address)
