"""The light base install leaves out what only the embedded engine needs."""

from __future__ import annotations

from importlib.util import find_spec

EMBEDDED = ("jinja2", "matplotlib", "numpy", "safetensors", "tokenizers", "torch", "transformers")


class MissingExtraError(ValueError):
    """A package of an optional extra is not installed; the message says how to get it."""


def require(*packages: str) -> None:
    """Raise `MissingExtraError` where one of the packages is missing."""
    missing = [name for name in packages if find_spec(name) is None]
    if missing:
        raise MissingExtraError(
            f"{', '.join(missing)} {'is' if len(missing) == 1 else 'are'} not installed: "
            "pip install 'slime-swe[embedded]', or use launch/run_qwen_swe.sh, which does"
        )
