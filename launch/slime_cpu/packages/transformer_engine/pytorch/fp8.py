"""Whether FP8 is on: never."""

from contextlib import AbstractContextManager, nullcontext


class FP8GlobalStateManager:
    @staticmethod
    def is_fp8_enabled() -> bool:
        return False


def fp8_autocast(enabled: bool = True, **_: object) -> AbstractContextManager[None]:
    if enabled:
        raise NotImplementedError("FP8 training needs a GPU")
    return nullcontext()
