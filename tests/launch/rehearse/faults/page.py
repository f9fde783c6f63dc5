"""docs/faults.md's table, from the drills that are recorded.

python -m tests.launch.rehearse.faults.page > faults.md && mv faults.md docs/faults.md
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from slime_swe.launch.rehearse.faults import MOMENTS, PARTS
from slime_swe.launch.rehearse.faults.outcome import GOES_ON, HANGS
from tests.launch.rehearse.what_has_run import ROOT

RECORDS = ROOT / "benchmarks" / "baselines" / "faults"
PAGE = ROOT / "docs" / "faults.md"
BEGIN, END = "<!-- table: python -m tests.launch.rehearse.faults.page -->", "<!-- end of the table -->"


def records() -> dict[tuple[str, str], dict[str, Any]]:
    found = (json.loads(path.read_text(encoding="utf-8")) for path in sorted(RECORDS.glob("*.json")))
    return {(record["part"], record["moment"]): record for record in found}


def page() -> str:
    """The page as it is, with the table as it is to be."""
    text = PAGE.read_text(encoding="utf-8")
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    assert begin and end
    return f"{before}{begin}\n\n{table()}\n{end}{after}"


def table() -> str:
    return "\n".join(_lines(records())) + "\n"


def _lines(found: dict[tuple[str, str], dict[str, Any]]) -> Iterator[str]:
    yield "| fails | during | SLiME | lost: episodes, steps | resumed from | outlive it | promises |"
    yield "| --- | --- | --- | --- | --- | --- | --- |"
    drills = [(part, moment) for part in PARTS for moment in MOMENTS]
    for part, moment in drills:
        if (part, moment) in found:
            yield f"| `{part}` | {moment} | {_cells(found[part, moment])} |"
    yield ""
    left = len(drills) - len(found)
    yield f"Never run are the other {left} of {len(drills)} drills." if left else f"All {len(drills)} drills have run."


def _cells(record: dict[str, Any]) -> str:
    kept = [check["ok"] for check in record["promises"]]
    broken = [check["name"] for check in record["promises"] if not check["ok"]]
    promises = f"{sum(kept)} of {len(kept)}" + (f", not {', '.join(broken)}" if broken else "")
    lost = f"{record['lost_episodes']}, {record['lost_steps']}"
    left = ", ".join(f"`{title}`" for title in record["processes"]) or "–"
    return " | ".join((_ending(record), lost, record["resumed_from"] or "–", left, promises))


def _ending(record: dict[str, Any]) -> str:
    seconds = f"{record['seconds']:.0f} s"
    if record["ending"] == GOES_ON:
        return f"{GOES_ON}, ends {seconds} later"
    return f"{HANGS}: nothing for {seconds}" if record["ending"] == HANGS else f"{record['ending']} after {seconds}"


if __name__ == "__main__":
    print(page(), end="")
