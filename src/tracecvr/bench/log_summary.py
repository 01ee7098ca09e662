"""What a report shows of a log itself: `log.json`, sums only, so that it can be redrawn where the log is not at hand.

{"clicks", "conversions", "d_max", "horizons", "actions", "notes", "counts",
 "origin": Unix time of the log's second 0, null if unknown,
 "delays": {"age_s", "share": {action: share of its occurrences within d_max that came by that age}, "count"}}
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from tracecvr.base.config import DAY, HOUR, MINUTE
from tracecvr.base.files import write_json
from tracecvr.data.table import NEVER, ClickTable, read_manifest

AGES = (0, 10, 30, *(n * MINUTE for n in (1, 2, 5, 10, 15, 30)), *(n * HOUR for n in (1, 2, 3, 6, 12)))
_DAYS = (1, 2, 3, 5, 7, 10, 14, 21, 30, 45, 60, 90, 180, 365)


def write(out: Path, log: Path) -> None:
    """`out/log.json` of a prepared log, unless it is there already."""
    if not (out / "log.json").is_file():
        write_json(out / "log.json", measure(ClickTable.load(log), read_manifest(log).get("origin")))


def measure(table: ClickTable, origin: int | None = None) -> dict[str, Any]:
    """Delays of the clicks whose labels are final: of others, only early conversions are known."""
    schema = table.schema
    final = int(np.searchsorted(table.click_ts, schema.observed_until - schema.d_max, side="right"))
    click_ts = table.click_ts[:final]
    ages = sorted({age for age in (*AGES, *(n * DAY for n in _DAYS), *schema.horizons) if age < schema.d_max})
    ages.append(schema.d_max)
    share, count = {}, {}
    for number, action in enumerate(schema.actions):
        at = table.action_ts[:final, number]
        delay = np.sort((at - click_ts)[(at != NEVER) & (at - click_ts <= schema.d_max)])
        count[action] = len(delay)
        share[action] = (np.searchsorted(delay, ages, side="right") / max(len(delay), 1)).tolist()
    return {
        "clicks": final,
        "conversions": int(table.label[:final].sum()),
        "d_max": schema.d_max,
        "horizons": list(schema.horizons),
        "actions": list(schema.actions),
        "notes": list(schema.notes),
        "counts": table.counts,
        "origin": origin,
        "delays": {"age_s": ages, "share": share, "count": count},
    }
