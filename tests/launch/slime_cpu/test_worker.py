"""What Ray's workers are set up with. tests/contract shows the same of SLiME's own actors."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytest.importorskip("wrapt", reason="comes with Ray")

LIGHT = """
import sys
from slime_swe.launch.slime_cpu.worker import set_up
set_up()
assert "torch" not in sys.modules
import torch
print(torch.ones(1, device="cuda", pin_memory=True).device, torch.cuda.current_device())
"""


def test_a_worker_has_the_shims_with_pytorch_and_not_before():
    done = subprocess.run([sys.executable, "-c", LIGHT], capture_output=True, text=True)
    assert done.stdout.split() == ["cpu", "cpu"], done.stderr
