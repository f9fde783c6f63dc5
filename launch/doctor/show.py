"""The report for people: a table that fits 100 columns."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from rich.box import SIMPLE
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from launch.doctor.finding import Finding, Status

WIDTH = 100
MARKS = {Status.OK: "[green]ok[/]", Status.WARNING: "[yellow]warning[/]", Status.FAILURE: "[bold red]failure[/]",
         Status.SKIPPED: "[dim]skipped[/]"}  # fmt: skip


def show(findings: Sequence[Finding], console: Console | None = None) -> None:
    """What was found; after each warning and failure, what to do about it; at the end commands, as they are pasted."""
    console = console or Console()
    console.width = min(console.width, WIDTH)
    table = Table(box=SIMPLE, show_header=False, pad_edge=False)
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for finding in findings:
        below = " (command below)" if finding.command else ""
        text = escape(finding.message) + (f"\n[cyan]→ {escape(finding.fix)}{below}[/]" if finding.fix else "")
        table.add_row(MARKS[finding.status], finding.check, text)
    console.print(table)
    for finding in findings:
        if finding.command:
            console.print(f"# {finding.check}\n{finding.command}\n", markup=False, highlight=False, soft_wrap=True)
    console.print(summary(findings))


def summary(findings: Sequence[Finding]) -> str:
    counts = Counter(finding.status for finding in findings)
    told = ", ".join(_counted(counts[status], status) for status in (Status.FAILURE, Status.WARNING, Status.OK))
    if counts[Status.FAILURE]:
        return f"A launch would fail: {told}."
    return f"Nothing stands in the way of a launch: {told}."


def _counted(count: int, status: Status) -> str:
    plural = count != 1 and status != Status.OK
    return f"{count} {status}{'s' if plural else ''}"
