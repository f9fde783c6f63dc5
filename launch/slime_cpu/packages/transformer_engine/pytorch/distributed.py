"""What recomputed activations keep of FP8, which is nothing, and the random states of `--te-rng-tracker`."""

from contextlib import AbstractContextManager, nullcontext


def activation_recompute_forward(
    activation_recompute: bool = False, recompute_phase: bool = False
) -> AbstractContextManager[None]:
    return nullcontext()


class CudaRNGStatesTracker:
    """The class that Megatron derives another from when it is imported, though it uses its own tracker."""

    def __init__(self) -> None:
        raise NotImplementedError("--te-rng-tracker has no stand-in on a CPU")
