"""Processes of one gloo group, forked from this one, which has imported what they need once."""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

TIMEOUT = 100.0  # seconds


def run(function: Callable[..., Any], size: int, folder: Path, *args: Any) -> list[Any]:
    """What `function(rank, *args)` returns on each rank. Raises `RuntimeError` where one fails."""
    folder.mkdir(parents=True)
    ways = multiprocessing.get_context("fork")
    processes = [ways.Process(target=_rank, args=(function, rank, size, folder, args)) for rank in range(size)]
    for process in processes:
        process.start()
    join(processes, TIMEOUT)
    if codes := [process.exitcode for process in processes if process.exitcode]:
        raise RuntimeError(f"ranks ended with {codes}")
    return [torch.load(folder / f"{rank}.pt", weights_only=False) for rank in range(size)]


def join(processes: list[Any], timeout: float) -> None:
    """Wait for all, or for the first that fails; end the rest."""
    deadline = time.monotonic() + timeout
    try:
        while any(process.is_alive() for process in processes) and time.monotonic() < deadline:
            if any(process.exitcode for process in processes):
                break
            time.sleep(0.05)
    finally:
        for process in processes:
            process.kill()
            process.join()


def _rank(function: Callable[..., Any], rank: int, size: int, folder: Path, args: tuple[Any, ...]) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=dist.FileStore(str(folder / "store"), size), rank=rank, world_size=size)
    torch.save(function(rank, *args), folder / f"{rank}.pt")
    dist.barrier()
    os._exit(0)  # without this one's exit handlers, which are the parent's
