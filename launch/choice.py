"""`recipe=NAME model=ORG/NAME key=value ...` on the command line."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

DEFAULT_RECIPE = "tiny_cpu"


def add_recipe_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "overrides",
        nargs="*",
        metavar="key=value",
        help=f"recipe=NAME (or a module, or a recipe.yaml; else {DEFAULT_RECIPE}), and changes to it; model=ORG/NAME "
        "or a folder is another model of its family",
    )


def split_recipe(words: Sequence[str]) -> tuple[str | None, list[str]]:
    """The recipe that the words name, the last one if several, and the other words."""
    return _split("recipe=", words)


def split_model(words: Sequence[str]) -> tuple[str | None, list[str]]:
    """The model that the words name in place of the recipe's, and the other words."""
    return _split("model=", words)


def _split(start: str, words: Sequence[str]) -> tuple[str | None, list[str]]:
    values = [word.removeprefix(start) for word in words if word.startswith(start)]
    return (values[-1] if values else None), [word for word in words if not word.startswith(start)]


def value_of(key: str, words: Sequence[str], default: str) -> str:
    """The value that an override gives to one key."""
    given = [word.partition("=")[2] for word in words if word.lstrip("+").startswith(f"{key}=")]
    return given[-1] if given else default
