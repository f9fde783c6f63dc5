"""The light base install leaves out what only some commands need."""

from __future__ import annotations

from importlib.util import find_spec

from slime_swe.errors import UserError

EMBEDDED = ("jinja2", "matplotlib", "numpy", "safetensors", "threadpoolctl", "tokenizers", "torch", "transformers")
CLUSTER = ("ray", "aiohttp_cors")  # the second comes with ray[default], whose job server this uses
_HOW = {
    "embedded": "pip install 'slime-swe[embedded]', or use launch/run_qwen_swe.sh, which does",
    "cluster": "pip install 'slime-swe[cluster]' (SLiME's image has it: there, run the image's own python)",
    "inspect": "pip install 'slime-swe[inspect]'",
    "compare": "pip install 'slime-swe[compare]', or use launch/run_qwen_swe.sh, which does",
    "factory": "pip install 'slime-swe[factory]'",
    "sft": "pip install 'slime-swe[sft]'",
    "trackers": "pip install 'slime-swe[trackers]'",
    "slime_cpu": "bash launch/run_qwen_swe.sh engine=slime_cpu ... makes an environment that has SLiME's packages",
    "rehearse": "bash launch/run_qwen_swe.sh engine=slime_cpu --help makes the environment of rehearsals, in which "
    ".venv-slime/bin/slime-swe rehearse runs",
}


def require(*packages: str, extra: str = "embedded") -> None:
    """Raise `UserError` where one of the packages, which that extra brings, is missing."""
    missing = [name for name in packages if find_spec(name) is None]
    if missing:
        raise UserError(f"{', '.join(missing)} {'is' if len(missing) == 1 else 'are'} not installed: {_HOW[extra]}")
