"""How long a page of `slime-swe report` takes to open in headless Chromium, from the disk: milliseconds until its
script has run and its first chart is drawn.

`small`: a run of as many episodes as the first command's. `large`: one of 100,000, which is a folder. Each is opened at
two widths, light and dark, and the slowest counts; `blank` is a page with nothing in it, which is opened alike.
`write_s` is what writing the larger takes. `--check` holds both pages to 3 s.

    python -m benchmarks.report_page [--episodes COUNT] [--json] [--check] [--save]

Needs Chromium and the extra `dev`: the episodes are those of the tests.
"""

from __future__ import annotations

import contextlib
import io
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.command import Figures, run
from slime_swe.errors import UserError
from slime_swe.launch.cli import run as slime_swe
from tests.chromium import CHROMIUM, Tab, browser, new_tab
from tests.launch.report.synthetic import GROUP, synthetic_run

SMALL = 2_304  # episodes of `tiny_cpu`
GROUPS = 125  # of a rollout of the larger run
SHAPES = [(width, dark) for width in (1280, 390) for dark in (False, True)]
BLANK = "<!doctype html><html data-ready='true'><div class='chart'><svg></svg></div></html>"
DRAWN = "document.querySelector('.chart')?.querySelector('svg, canvas')"
LIMITS = {"small_ms": 3_000.0, "large_ms": 3_000.0}


async def measure(episodes: int) -> Figures:
    """episodes: of the larger run. Raises `UserError` without Chromium."""
    if not CHROMIUM:
        raise UserError("there is no Chromium here: apt-get install chromium")
    with TemporaryDirectory() as folder, browser() as address:
        blank = Path(folder, "blank.html")
        blank.write_text(BLANK)
        small, _ = _written(Path(folder), "small", rollouts=SMALL // (16 * GROUP), groups=16)
        large, seconds = _written(Path(folder), "large", max(1, episodes // (GROUPS * GROUP)), GROUPS)
        async with new_tab(address) as tab:
            found = {name: await _opened(tab, page) for name, page in
                     (("blank", blank), ("small", small), ("large", large))}  # fmt: skip
        files = large.parent.rglob("*") if large.name == "index.html" else [large]
        size = sum(path.stat().st_size for path in files if path.is_file())
        return {
            **{f"{name}_ms": took * 1e3 for name, took in found.items()},
            "small_mb": small.stat().st_size / 1e6,
            "large_mb": size / 1e6,
            "write_s": seconds,
        }


def _written(folder: Path, name: str, rollouts: int, groups: int) -> tuple[Path, float]:
    """A synthetic run's page, and the seconds that writing it took."""
    recorded, out = synthetic_run(folder / "runs", name, rollouts, groups), folder / f"{name}.html"
    started = time.perf_counter()
    with contextlib.redirect_stdout(io.StringIO()):
        assert slime_swe(["report", str(recorded), "--out", str(out)]) == 0
    seconds = time.perf_counter() - started
    return (out / "index.html" if out.is_dir() else out), seconds


async def _opened(tab: Tab, page: Path) -> float:
    """Seconds, of the slowest."""
    slowest = 0.0
    for width, dark in SHAPES:
        await tab.shape(width, dark=dark)
        started = time.perf_counter()
        await tab.open(page)
        await tab.until(DRAWN)
        slowest = max(slowest, time.perf_counter() - started)
    return slowest


if __name__ == "__main__":
    sys.exit(run(__doc__ or "", "report_page", measure, limits=LIMITS, episodes=100_000))
