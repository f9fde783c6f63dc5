"""`recipe=NAME key=value ...` on the command line."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

DEFAULT_RECIPE = "tiny_cpu"


def add_recipe_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "overrides",
        nargs="*",
        metavar="key=value",
        help=f"recipe=NAME (or a module, or a recipe.yaml; else {DEFAULT_RECIPE}), and changes to it",
    )


def split_recipe(words: Sequence[str]) -> tuple[str | None, list[str]]:
    """The recipe that the words name, the last one if several, and the other words."""
    names = [word.partition("=")[2] for word in words if word.startswith("recipe=")]
    return (names[-1] if names else None), [word for word in words if not word.startswith("recipe=")]


def value_of(key: str, words: Sequence[str], default: str) -> str:
    """The value that an override gives to one key."""
    given = [word.partition("=")[2] for word in words if word.lstrip("+").startswith(f"{key}=")]
    return given[-1] if given else default
