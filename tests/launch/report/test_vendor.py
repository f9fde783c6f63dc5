"""The scripts that are not ours are those that the manifest names, with their licences, and stay small."""

from __future__ import annotations

import gzip
import hashlib
from pathlib import Path

from slime_swe.launch.report.page import vendored

FOLDER = Path(__file__).parents[3] / "launch" / "report" / "vendor"
LICENCES = {
    "BSD-3-Clause": "Redistribution and use in source and binary forms",
    "MIT": "Permission is hereby granted, free of charge",
    "Apache-2.0": "Apache License",
}


def test_each_file_is_the_one_that_is_named():
    for entry in vendored():
        assert hashlib.sha256((FOLDER / entry["file"]).read_bytes()).hexdigest() == entry["sha256"], entry["file"]


def test_together_they_stay_below_a_megabyte():
    contents = [(FOLDER / entry["file"]).read_bytes() for entry in vendored()]
    assert sum(map(len, contents)) < 1_000_000
    assert sum(len(gzip.compress(content, 9)) for content in contents) < 310_000


def test_each_has_its_licence_and_there_is_no_other_file():
    named = {"manifest.json"}
    for entry in vendored():
        texts = [(FOLDER / name).read_text() for name in entry["license_files"]]
        for licence, text in zip(entry["license"].split(" AND "), texts, strict=True):
            assert LICENCES[licence] in text, entry["file"]
        named |= {entry["file"], *entry["license_files"]}
    assert named == {path.name for path in FOLDER.iterdir()}
