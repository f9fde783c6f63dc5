"""What `slime-swe` prints on standard output: one JSON document, or text for people."""

from __future__ import annotations

import sys

import orjson


def print_json(document: object) -> None:
    options = orjson.OPT_INDENT_2 | orjson.OPT_NON_STR_KEYS | orjson.OPT_SERIALIZE_NUMPY
    sys.stdout.write(orjson.dumps(document, option=options).decode() + "\n")
