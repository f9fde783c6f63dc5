"""Types of a recipe's fields: msgspec's constraints, stated where the field is.

`Meta(description=...)` says in words what is allowed, where the constraint itself would not be understood.
"""

from __future__ import annotations

import re
from typing import Annotated

from msgspec import Meta

Size = Annotated[int, Meta(ge=1)]
Count = Annotated[int, Meta(ge=0)]
Positive = Annotated[float, Meta(gt=0)]
Weight = Annotated[float, Meta(ge=0)]
Rate = Annotated[float, Meta(ge=0, le=1)]
Part = Annotated[float, Meta(gt=0, le=1)]
Share = Annotated[float, Meta(ge=0, lt=1)]
Folder = Annotated[str, Meta(min_length=1, description="a folder")]

_DOTTED = r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)+"
Hook = Annotated[str, Meta(pattern=rf"^{_DOTTED}\Z", description="a dotted path such as my_module.my_function")]
OptionalHook = Annotated[
    str, Meta(pattern=rf"^({_DOTTED})?\Z", description="a dotted path such as my_module.my_filter, or empty")
]
Server = Annotated[str, Meta(pattern=r"^(https?://)?(\[[0-9a-fA-F:]+\]|[\w.-]+):\d{1,5}/?\Z")]


CHOICES = "choices"  # in a constraint's `extra`


def one_of(*names: str) -> Meta:
    """Text that is one of these."""
    said = ", ".join(filter(None, names)) + (", or empty" if "" in names else "")
    pattern = rf"^({'|'.join(map(re.escape, names))})\Z"
    return Meta(pattern=pattern, description=f"one of {said}", extra={CHOICES: names})


def constant(value: int, why: str) -> Meta:
    """A number that must stay what it is."""
    return Meta(ge=value, le=value, description=f"{value}: {why}")
