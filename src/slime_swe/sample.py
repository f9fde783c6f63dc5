"""The one place that decides which `Sample` is used: that of SLiME or its fork where one of them is installed, else a
compatible one. What the fork's lacks is made up for here.
"""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from slime_swe._sample import Sample
else:
    from slime_swe.train_loop import module_of

    _theirs = module_of("utils.types")
    if _theirs is None:
        from slime_swe import _sample as _theirs
    Sample = _theirs.Sample

__all__ = ["Sample", "set_routed_experts"]


def set_routed_experts(args: Any, sample: Sample, table: bytes) -> None:
    """Give a filled sample the experts of its tokens: int32, tokens but the last x layers x top-k."""
    if hasattr(sample, "append_response_tokens"):
        sample.append_response_tokens(args, meta_info={"routed_experts": base64.b64encode(table).decode()})
    else:  # of miles, which has no such method and wants this array
        import numpy

        shape = (len(sample.tokens) - 1, args.num_layers, args.moe_router_topk)
        sample.rollout_routed_experts = numpy.frombuffer(table, numpy.int32).reshape(shape)
