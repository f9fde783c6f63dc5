"""Quantised tensors: no tensor is one."""


class QuantizedTensor:
    pass
