"""SGLang's parsers without SGLang: its wheel alone, without what `import sglang` needs of a GPU machine."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

NEEDS = "pip install --no-deps sglang==0.5.15.post1 partial-json-parser (tests/run.sh does)"


def installed() -> bool:
    return _folder() is not None and importlib.util.find_spec("partial_json_parser") is not None


def _folder() -> Path | None:
    found = importlib.util.find_spec("sglang")
    return Path(found.origin).parent if found and found.origin else None


@contextmanager
def sglang_parsers() -> Iterator[Any]:
    """The module of `FunctionCallParser`. SGLang's packages around it are empty ones, and gone afterwards."""
    folder = _folder()
    assert folder is not None
    before = {name: sys.modules.pop(name) for name in _loaded()}
    try:
        for name, path in (("sglang", folder), ("sglang.srt", folder / "srt")):
            sys.modules[name] = ModuleType(name)
            sys.modules[name].__path__ = [str(path)]
        utils = ModuleType("sglang.utils")  # which wants Jupyter
        utils.convert_json_schema_to_str = str  # type: ignore[attr-defined]
        sys.modules["sglang.utils"] = utils
        yield importlib.import_module("sglang.srt.function_call.function_call_parser")
    finally:
        for name in _loaded():
            del sys.modules[name]
        sys.modules.update(before)


def _loaded() -> list[str]:
    return [name for name in sys.modules if name == "sglang" or name.startswith("sglang.")]
