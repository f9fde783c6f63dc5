from .dot_product import DotProductAttention as DotProductAttention
