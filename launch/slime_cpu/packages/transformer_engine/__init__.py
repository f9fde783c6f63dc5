"""Transformer Engine's layers in plain PyTorch, under its names, for Megatron-core on a CPU.

It is no installed package: only the processes of `engine=slime_cpu` find it, on their PYTHONPATH. It holds what
Megatron-core imports of Transformer Engine at the commit that SLiME pins, as far as a run in whole precision calls it.
What is left out raises `ImportError`, as an older version would, or `NotImplementedError`; nothing is skipped silently.
Not covered: FP8 and FP4, communication that overlaps computation, CUDA graphs, offloaded activations.
"""

from . import common as common
from . import pytorch as pytorch

__version__ = "2.16.1"  # of SLiME's image: Megatron takes the branches that it takes there
