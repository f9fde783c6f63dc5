"""The Modal app that `python -m slime_swe.launch.modal deploy` hands over: an SGLang server, a URL that asks for a key.

Modal imports this file by itself, here to deploy it and again in the container, and calls nothing beforehand: so the
settings come from one environment variable, which is set in both places, and are read at import.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import modal

from slime_swe import errors
from slime_swe.launch.modal.settings import APP, IMAGE, MODELS, PORT, VARIABLE, command, from_json

START_SECONDS = 30 * 60
DAY = 24 * 60 * 60
HERE = Path(__file__).resolve().parent
ERRORS = Path(str(errors.__file__)).resolve()

served = from_json(os.environ[VARIABLE])
app = modal.App(APP, include_source=False)  # what it would find by itself may be links, which it does not follow
image = (
    modal.Image.from_registry(IMAGE)
    .entrypoint([])
    .env({VARIABLE: served.to_json(), "HF_HOME": MODELS})
    .add_local_dir(HERE, "/root/slime_swe/launch/modal")
    .add_local_file(ERRORS, "/root/slime_swe/errors.py")
)
volumes: dict[str, modal.Volume | modal.CloudBucketMount] = {
    MODELS: modal.Volume.from_name("slime-swe-models", create_if_missing=True)
}
if served.bucket:
    secret = modal.Secret.from_name(served.secret) if served.secret else None
    volumes[served.weights] = modal.CloudBucketMount(served.bucket, secret=secret, read_only=True)


@app.function(
    image=image,
    gpu=f"{served.gpu}:{served.gpus}",
    volumes=volumes,
    timeout=DAY,
    min_containers=1,
    max_containers=1,  # a second copy would miss new weights
)
@modal.concurrent(max_inputs=served.concurrency)
@modal.web_server(PORT, startup_timeout=START_SECONDS, requires_proxy_auth=True)
def serve() -> None:
    subprocess.Popen(command(served))
