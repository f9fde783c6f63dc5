"""The checkouts of miles, SLiME's fork (https://github.com/radixark/miles), and of its Megatron-LM, at the commits that
were read and tested."""

from __future__ import annotations

from slime_swe.launch.slime import checkouts
from slime_swe.launch.slime.checkouts import Checkout

MILES = Checkout("MILES_HOME", "/root/miles", "31f1ca961a94cb860cec3b2dea34ec332bfa8f76", checkouts.SLIME.mark)
MEGATRON = Checkout(
    checkouts.MEGATRON.variable,
    checkouts.MEGATRON.image,
    "2e64d788b67fe8155774200c87606e1e449c494b",
    checkouts.MEGATRON.mark,
)
COMMANDS = f"""make them so:
  git clone --filter=blob:none https://github.com/radixark/miles.git
  git -C miles checkout {MILES.commit}
  git clone --filter=blob:none --branch miles-main https://github.com/radixark/Megatron-LM.git
  git -C Megatron-LM checkout {MEGATRON.commit}
  export {MILES.variable}=$PWD/miles {MEGATRON.variable}=$PWD/Megatron-LM"""
