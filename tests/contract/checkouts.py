"""Checkouts that the environment names, for the contract tests with SLiME and those with its fork."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest


def why_not(*checkouts):
    """What is missing of these; None where all are there."""
    for checkout in checkouts:
        given = os.environ.get(checkout.variable)
        if not given:
            return f"{checkout.variable} is not set"
        if not (Path(given) / checkout.mark).is_file():
            return f"{checkout.variable}={given} holds no {checkout.mark}"
    return None


def first_or_skip(*checkouts):
    """The folder of the first; the test is skipped where one is missing."""
    reason = why_not(*checkouts)
    if reason:
        pytest.skip(f"needs checkouts: {reason}")
    return Path(os.environ[checkouts[0].variable])


def put_on_path(*checkouts):
    """Where all of them are: before a test module is imported, as `slime_swe.sample` looks for SLiME once."""
    if why_not(*checkouts) is None:
        sys.path[:0] = [os.environ[checkout.variable] for checkout in checkouts]
