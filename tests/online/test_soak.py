"""Rounds of kills and damages: `make soak` runs 200 of them."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from soak import Soak


@pytest.mark.slow
def test_bad_luck_changes_nothing_silently(hourly: Path, tmp_path: Path) -> None:
    rounds = int(os.environ.get("TRACECVR_SOAK", "40"))
    soak = Soak(tmp_path, hourly, int(os.environ.get("TRACECVR_SOAK_SEED", "0")))
    soak.run(rounds)
    sys.stderr.writelines(f"{count:4} {what}\n" for what, count in sorted(soak.rounds.items()))
    assert not soak.silent, "\n".join(soak.silent)
    assert soak.rounds.total() == rounds
