"""What SLiME imports of flash-linear-attention, in plain PyTorch: the gated delta rule and the layers beside it.

It is no installed package: only the processes of `engine=slime_cpu` find it, on their PYTHONPATH. Sequences are packed
into one row. Not covered: states that are carried from one call to the next, and kernels' own context parallelism.
"""

__version__ = "0.4.2"  # of SLiME's image
