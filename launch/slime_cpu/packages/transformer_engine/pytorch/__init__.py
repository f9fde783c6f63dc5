from . import distributed as distributed
from . import ops as ops
from .attention import DotProductAttention as DotProductAttention
from .layers import GroupedLinear as GroupedLinear
from .layers import LayerNorm as LayerNorm
from .layers import LayerNormLinear as LayerNormLinear
from .layers import Linear as Linear
from .layers import RMSNorm as RMSNorm
