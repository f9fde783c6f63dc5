"""What a trainer's log says of it: Megatron's table of its arguments, and its count of each rank's parameters."""

from __future__ import annotations

import re

_ARGUMENT = re.compile(r"^(?:\(.*?\)\s)?\s{2}(\w+) \.{2,} ?(.*)$")
_COUNTED = re.compile(r"number of parameters on \(tensor, pipeline\) model parallel rank \((\d+), (\d+)\): (\d+)")
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")


def arguments(log: str) -> dict[str, str]:
    """Attribute -> its value as text, as Megatron prints them once all are final."""
    lines = _COLOURS.sub("", log).splitlines()
    return {match[1]: match[2] for line in lines if (match := _ARGUMENT.match(line))}


def parameters(log: str) -> dict[tuple[int, int], int]:
    """Rank of tensor and of pipeline parallelism -> parameters, those of its experts among them."""
    return {(int(tp), int(pp)): int(count) for tp, pp, count in _COUNTED.findall(_COLOURS.sub("", log))}
