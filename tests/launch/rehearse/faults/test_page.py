"""docs/faults.md has the table that the recorded drills make, and promises no more than they show."""

from __future__ import annotations

from slime_swe.launch.rehearse.faults import MOMENTS, PARTS
from slime_swe.launch.rehearse.faults.outcome import PROMISES
from tests.launch.rehearse.faults.page import BEGIN, PAGE, RECORDS, page, records
from tests.launch.rehearse.what_has_run import ROOT


def text() -> str:
    return PAGE.read_text(encoding="utf-8")


def test_the_table_is_up_to_date():
    assert text() == page(), BEGIN


def test_every_record_is_of_a_drill_and_has_every_promise():
    assert len(records()) == len(list(RECORDS.glob("*.json"))) > 0
    for (part, moment), record in records().items():
        assert part in PARTS and moment in MOMENTS
        assert (RECORDS / f"{part}.{moment}.json").is_file()
        assert [check["name"] for check in record["promises"]] == list(PROMISES)


def test_the_page_names_every_part_and_promise():
    for name in (*PARTS, *PROMISES):
        assert f"`{name}`" in text(), name


def test_a_promise_names_a_page_that_is_there():
    for _, where in PROMISES.values():
        assert (ROOT / where.partition(":")[0]).is_file()
