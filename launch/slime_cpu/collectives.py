"""What PyTorch 2.13 calls of a process group and SLiME's wrapper of one, `ReloadableProcessGroup`, does not pass on.

`reduce_scatter_tensor` and its like call the group's `reduce_scatter_single`, a method of the class that the wrapper
derives from, which knows no backend. The wrapper is of older PyTorch, as SLiME's image has it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

METHODS = ("all_gather_single", "reduce_scatter_single", "all_to_all_single")


def forward_single_collectives() -> None:
    """Let the wrapper pass these on, as it does the others."""
    from slime.utils.reloadable_process_group import ReloadableProcessGroup

    for name in METHODS:
        if name not in vars(ReloadableProcessGroup):
            setattr(ReloadableProcessGroup, name, _forward(name))


def _forward(name: str) -> Callable[..., Any]:
    def call(self: Any, *args: Any, **options: Any) -> Any:
        return self._fwd(name, *args, **options)

    return call
