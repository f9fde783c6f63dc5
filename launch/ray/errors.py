"""What goes wrong around a Ray cluster: asked for wrongly, or broken."""

from __future__ import annotations

from importlib.util import find_spec

from launch.extras import MissingExtraError

_NEEDED = ("ray", "aiohttp_cors")  # the second comes with ray[default], whose job server this uses


class ClusterError(ValueError):
    """The cluster asked for can't be had; the message says what to do."""


class RayError(RuntimeError):
    """Ray did not start, went away, or refused a job."""


def require_ray() -> None:
    """Raise `MissingExtraError` where Ray or its job server is missing."""
    if not all(map(find_spec, _NEEDED)):
        raise MissingExtraError(
            "Ray with its job server is not installed here: pip install 'slime-swe[cluster]' (SLiME's image has it; "
            "there, run the image's own python)"
        )
