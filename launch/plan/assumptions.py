"""What the planner assumes where no recipe says it and no formula gives it; `--assume NAME=VALUE` changes it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass

from slime_swe.errors import UserError

GIB = 2**30
ABOVE_ZERO = ("turn_seconds", "grade_seconds", "sandbox_cpus")
"""Without these there is no episode to simulate."""
AT_MOST_ONE = ("context", "sampled", "turns", "informative")


@dataclass(frozen=True)
class Assumptions:
    """The numbers that the planner assumes, to be replaced by what a first run measures.

    These are means over episodes; how they spread is in `simulation/workload.py`. The first four are 0 for what the
    recipe's `forecast` says:

    context: the length at the end, as a share of `rollout.max_context`.
    sampled: tokens that the policy sampled, as a share of that length.
    turns: model calls, as a share of `rollout.max_turns`.
    informative: groups that pass the filter, as a share of those that are sampled.
    turn_seconds: in the sandbox, for one model call's commands.
    grade_seconds: for grading; the median.

    These are of machines:

    mfu: share of the GPU's FLOP/s that training reaches; 0 takes the value of the GPU's kind.
    prefill_mfu, decode_bandwidth: shares of FLOP/s and of memory bandwidth that serving reaches.
    layer_latency: microseconds of one layer in a decoding step, however little there is to read.
    prefill_chunk: tokens of one prefill pass.
    skew: tokens of the busiest expert-parallel rank, over the mean.
    context_gib, group_gib: GiB of a CUDA context with its libraries, and of one NCCL communicator.
    trainer_rest, server_rest: GiB that a paused trainer keeps on a GPU (SLiME reports 3 to 5), and a paused server.
    fragmentation: of what the allocator hands out and takes back, as a share of it.
    margin: share of a GPU's memory, and of a machine's, to keep free: the formulae are no better than that, and Ray
        kills workers of a machine that is 95 % full.
    sync_rate: GB/s at which one node's engines receive weights. SLiME's co-located 30B-A3B takes 7 s for 61 GB.
    pcie, host_bandwidth: GB/s of one GPU's link, and of one machine's memory.
    sandbox_cpus, sandbox_gib: CPU cores that a command in a sandbox keeps busy, and a sandbox's memory.
    image_gib: of one task's container image beside the layers it shares; 0 takes what is published of its corpus, and
        where nothing is, 0.5, or 3 where a sandbox unpacks it.
    process_gib, node_gib: machine memory of the processes of one GPU, and of everything else on a node.
    """

    context: float = 0.0
    sampled: float = 0.0
    turns: float = 0.0
    informative: float = 0.0
    turn_seconds: float = 2.0
    grade_seconds: float = 60.0
    mfu: float = 0.0
    prefill_mfu: float = 0.4
    decode_bandwidth: float = 0.6
    layer_latency: float = 60.0
    prefill_chunk: float = 8192
    skew: float = 1.25
    context_gib: float = 1.5
    group_gib: float = 0.5
    trainer_rest: float = 4.0
    server_rest: float = 3.0
    fragmentation: float = 0.05
    margin: float = 0.05
    sync_rate: float = 8.7
    pcie: float = 25.0
    host_bandwidth: float = 200.0
    sandbox_cpus: float = 1.0
    sandbox_gib: float = 2.0
    image_gib: float = 0.0
    process_gib: float = 12.0
    node_gib: float = 16.0


def assume(options: Iterable[str]) -> Assumptions:
    """Return the assumptions with `NAME=VALUE` changes. Raises `UserError` for an unknown name or a wrong value."""
    names = [field.name for field in dataclasses.fields(Assumptions)]
    changes = {}
    for option in options:
        name, _, value = option.partition("=")
        if name not in names:
            raise UserError(f"--assume {option!r}: there is no assumption {name!r}. There are {', '.join(names)}")
        changes[name] = _positive(option, value)
        if (name in ABOVE_ZERO and not changes[name]) or (name in AT_MOST_ONE and changes[name] > 1):
            raise UserError(f"--assume {option!r}: give more than 0{', and at most 1' * (name in AT_MOST_ONE)}")
    return dataclasses.replace(Assumptions(), **changes)


def _positive(option: str, value: str) -> float:
    try:
        number = float(value)
    except ValueError as error:
        raise UserError(f"--assume {option!r}: {value!r} is not a number") from error
    if not 0 <= number < float("inf"):
        raise UserError(f"--assume {option!r}: {value!r} must be a number of at least 0")
    return number
