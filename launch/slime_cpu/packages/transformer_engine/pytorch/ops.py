"""Fusible operations, of which there are none here: Megatron names their classes in annotations."""


class FusibleOperation:
    def __init__(self, *_: object, **__: object) -> None:
        raise NotImplementedError("--use-transformer-engine-op-fuser has no stand-in on a CPU")


class Sequential(FusibleOperation):
    pass
