"""Run independent pieces of tensor work on several cores, with results that don't depend on how many.

One thread per piece instead of many threads per operation: nothing waits at a barrier within each small operation, so
a core that is taken by another process slows the work down by its share and no more.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

import torch
from threadpoolctl import threadpool_limits

S = TypeVar("S")
T = TypeVar("T")


def set_threads(count: int) -> None:
    """Set how many threads one operation takes, of PyTorch's and of the library behind NumPy."""
    torch.set_num_threads(count)
    threadpool_limits(count, user_api="blas")


def worker_count() -> int:
    """Return how many pieces to work on at once: as many as there are cores for their threads."""
    return max(1, len(os.sched_getaffinity(0)) // torch.get_num_threads())


def ordered_map(function: Callable[[S], T], items: Iterable[S], workers: int) -> Iterator[T]:
    """Yield `function` of each item, in order: `workers` of them at once, and at most one more begun than used.

    Results are as large as the model: behind a slow piece they must not pile up.
    """
    if workers == 1:
        yield from map(function, items)
        return
    threads = torch.get_num_threads()
    with ThreadPoolExecutor(workers, initializer=torch.set_num_threads, initargs=(threads,)) as pool:
        begun: deque[Future[T]] = deque()
        for item in items:
            begun.append(pool.submit(function, item))
            if len(begun) > workers:
                yield begun.popleft().result()
        while begun:
            yield begun.popleft().result()
