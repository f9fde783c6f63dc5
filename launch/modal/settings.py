"""What is served on Modal, and SGLang's command for it.

It imports the standard library and `slime_swe.errors` alone: the container has no more.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from slime_swe.errors import UserError

APP = "slime-swe-engine"
FUNCTION = "serve"
VARIABLE = "SLIME_SWE_MODAL"
PORT = 8000
IMAGE = "slimerl/sglang:v0.5.15.post1-cu129"  # what SLiME's own image is built on
MODELS = "/models"


@dataclass(frozen=True)
class Served:
    """One copy of a model, on one machine of Modal's.

    model: `ORG/NAME` on the Hugging Face hub. revision: of it; empty takes the newest.
    gpu, gpus: their kind in Modal's words, and how many share the model by tensor parallelism.
    context: tokens of one episode.
    mem_fraction: share of a GPU's memory for weights and KV cache.
    concurrency: requests in flight at once.
    weights: absolute path of the folder that the trainer writes new weights to; empty serves the model as it is.
    bucket: S3 bucket that is this folder, here and there. secret: Modal's name of the credentials for it.
    """

    model: str
    revision: str = ""
    gpu: str = "H100"
    gpus: int = 1
    context: int = 32768
    mem_fraction: float = 0.85
    concurrency: int = 256
    weights: str = ""
    bucket: str = ""
    secret: str = ""

    def __post_init__(self) -> None:
        if bool(self.weights) != bool(self.bucket):
            raise UserError(
                "weights and bucket go together: new weights reach Modal through a bucket that is mounted at the "
                "folder that the trainer writes them to"
            )
        if self.weights and not self.weights.startswith("/"):
            raise UserError(f"weights={self.weights!r} must be an absolute path, the same on both sides")

    def to_json(self) -> str:
        return json.dumps(asdict(self))


def from_json(text: str) -> Served:
    return Served(**json.loads(text))


def command(served: Served) -> list[str]:
    """SGLang's server for it. Log-probabilities and token ids come with each answer, as requests ask for them."""
    revision = ["--revision", served.revision] if served.revision else []
    return [
        *("python3", "-m", "sglang.launch_server", "--host", "0.0.0.0", "--port", str(PORT)),
        *("--model-path", served.model, *revision, "--tp-size", str(served.gpus)),
        *("--context-length", str(served.context), "--mem-fraction-static", str(served.mem_fraction)),
        *("--max-running-requests", str(served.concurrency), "--enable-metrics"),
    ]
