"""What an exercise of the polyglot benchmark needs beyond its language's toolchain, and whether it is here.

Nothing is downloaded: libraries are where Debian's packages put them, which a local sandbox sees.
"""

from __future__ import annotations

import re
import shutil
import tomllib
from collections.abc import Mapping
from glob import glob
from pathlib import Path

CRATES = Path("/usr/share/cargo/registry")
_BOOST = "/usr/lib/*/libboost_date_time.*"
_PATH = "/usr/local/bin:/usr/bin:/bin"  # a local sandbox's; it sees no home, where rustup puts cargo
_MEMORY = "its example needs more memory than a local sandbox has"
_STUB_PASSES = "its stub passes, since it is to be rewritten"
# Exercises that prove nothing wherever they run, or not in a local sandbox.
_UNSOUND: Mapping[str, Mapping[str, str]] = {
    "go": {
        "alphametics": _MEMORY,
        "counter": "it has no tests",
        "ledger": _STUB_PASSES,
        "markdown": _STUB_PASSES,
    },
    "javascript": {"ledger": _STUB_PASSES, "parallel-letter-frequency": _MEMORY},
}


def is_here(need: str) -> bool:
    """need: a program, or a file where it has a `/`."""
    return Path(need).exists() if "/" in need else shutil.which(need, path=_PATH) is not None


def why_left_out(exercise: Path, language: str) -> str:
    """Why an exercise can't prove itself here; empty where it can."""
    if reason := _UNSOUND.get(language, {}).get(exercise.name):
        return reason
    match language:
        case "cpp" if "find_package(Boost" in _text(exercise / "CMakeLists.txt") and not glob(_BOOST):
            return "it needs Boost (Debian: libboost-date-time-dev)"
        case "go":
            return _missing_packages(exercise)
        case "java" if named := re.findall(r"^\s*implementation\W+([^\"']+)", _text(exercise / "build.gradle"), re.M):
            return f"it needs {' and '.join(named)}"
        case "rust":
            return _missing_crates(exercise)
    return ""


def _missing_packages(exercise: Path) -> str:
    go = shutil.which("go", path=_PATH)
    imports = re.search(r"^import \((.*?)^\)", _text(exercise / ".meta" / "example.go"), re.M | re.S)
    if go is None or imports is None:
        return ""
    library = Path(go).resolve().parents[1] / "src"
    absent = [name for name in re.findall(r'^\s*"(.+)"', imports[1], re.M) if not (library / name).exists()]
    return f"its example needs a newer Go, with {' and '.join(absent)}" if absent else ""


def _missing_crates(exercise: Path) -> str:
    named = _crates(exercise / "Cargo.toml")
    if absent := [crate for crate in named if not any(CRATES.glob(f"{crate}-[0-9]*"))]:
        return f"it needs crates (Debian: {' '.join(f'librust-{crate}-dev' for crate in absent)})"
    example = _text(exercise / ".meta" / "example.rs")
    used = [crate for crate in _crates(exercise / ".meta" / "Cargo-example.toml") if crate.replace("-", "_") in example]
    extra = [crate for crate in used if crate not in named]
    return f"its example needs crates that its Cargo.toml does not name: {' '.join(extra)}" if extra else ""


def _crates(manifest: Path) -> list[str]:
    return list(tomllib.loads(_text(manifest)).get("dependencies", {}))


def _text(path: Path) -> str:
    return path.read_text("utf-8") if path.is_file() else ""
