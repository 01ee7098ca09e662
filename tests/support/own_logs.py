"""A small log of one's own: its schema, and the dataset that reads it."""

from __future__ import annotations

from pathlib import Path

from tracecvr.datasets.logs import Logs

GOOD = """
shape = "clicks"
files = ["log.csv"]
[time]
unit = "s"
origin = 2026-01-01
[click]
id = "id"
time = "at"
[[action]]
name = "purchase"
time = "bought"
[labels]
d_max = "2d"
horizons = ["1h", 86400, "2d"]
split = "5d"
observed_until = "20d"
[features]
site = {kind = "hashed", size = 8}
"""


def logs(folder: Path, text: str = GOOD) -> Logs:
    (folder / "schema.toml").write_text(text)
    return Logs(schema=str(folder / "schema.toml"))
