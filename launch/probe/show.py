"""A first look as a page of text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.box import SIMPLE
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from slime_swe.launch.output import rate, visible
from slime_swe.launch.probe.look import ENOUGH, Look

WIDTH = 100


def show(look: Look, wanted: Sequence[str], served: str, console: Console) -> None:
    """wanted: what to change. served: the model, and who serves it."""
    console.width = min(console.width, WIDTH)
    table = Table(box=SIMPLE, show_header=False, pad_edge=False)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for heading, text in _rows(look, served):
        table.add_row(heading, escape(visible(text)))
    console.print(table)
    verdict = "[green]The policy can act.[/]" if look.acts else "[bold red]The policy can't act.[/]"
    console.print(f"{verdict} {escape(_why(look))}", highlight=False)
    console.print("\n[bold]What to change[/]", highlight=False)
    sentences = Table(box=None, show_header=False, pad_edge=False)
    sentences.add_column(no_wrap=True)
    sentences.add_column(overflow="fold")
    for sentence in wanted or ["Nothing: it is fine as it is."]:
        sentences.add_row("-", escape(visible(sentence)))
    console.print(sentences)


def _rows(look: Look, served: str) -> list[tuple[str, str]]:
    """Heading and text of each line; what there is nothing to say of is left out."""
    tokens, turns = look.tokens_of_turn, look.turns_of_episode
    rows = [
        ("model", served),
        ("episodes", f"{look.episodes} played" + (f", {sum(look.broken.values())} broken" if look.broken else "")),
        ("broken by", _counted(look.broken)),
        ("turns with a call", f"{look.with_call} of {look.turns} in {look.tool_format}" if look.turns else "no turn"),
        ("written as", _counted(look.forms) if [*look.forms] != [look.tool_format] else ""),
        ("malformed calls", f"{look.malformed} turns: {'; '.join(look.errors)}" if look.malformed else ""),
        ("without a call", f"{look.without_call} turns, which begin with\n{_lines(look.first_lines)}"
                           if look.without_call else ""),
        ("cut", f"{look.cut} turns by their limit, before a call was complete" if look.cut else ""),
        ("other formats", _others(look)),
        ("stop reasons", _counted(look.stop_reasons)),
        ("tokens of a turn", f"median {tokens.median:,g}, 90 % at most {tokens.nine_in_ten:,g}"),
        ("turns of an episode", f"median {turns.median:g}, 90 % at most {turns.nine_in_ten:g}"),
        ("cached", f"{rate(look.cached)} of the prompt tokens" if look.cached is not None else ""),
        ("solved", f"{look.solved} of {look.episodes}, {rate(look.solved / look.episodes, look.interval)}"
                   if look.episodes else ""),
        ("reward", f"{look.reward:.2f} on average" if look.reward is not None else ""),
    ]  # fmt: skip
    return [(heading, text) for heading, text in rows if text]


def _why(look: Look) -> str:
    if not look.episodes:
        return "No episode was played to its end."
    if look.episodes <= sum(look.broken.values()):
        return "Infrastructure broke at least half of the episodes, so that the others say little."
    return f"{rate(look.share)} of its turns hold a call, and {100 * ENOUGH:.0f} % should."


def _others(look: Look) -> str:
    read = {name: count for name, count in look.read_by.items() if name != look.tool_format and count}
    return ", ".join(f"{name} reads a call in {count}" for name, count in _sorted(read))


def _lines(lines: Mapping[str, int]) -> str:
    return "\n".join(f"{count} × {line or '(nothing)'}" for line, count in lines.items())


def _counted(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in _sorted(counts))


def _sorted(counts: Mapping[str, int]) -> list[tuple[str, int]]:
    """The most frequent first."""
    return sorted(counts.items(), key=lambda item: -item[1])
