from . import distributed as distributed
from . import ops as ops
from .attention import DotProductAttention as DotProductAttention
from .grouped_linear import GroupedLinear as GroupedLinear
from .linear import LayerNormLinear as LayerNormLinear
from .linear import Linear as Linear
from .norm import LayerNorm as LayerNorm
from .norm import RMSNorm as RMSNorm
