"""The Modal app, which `python -m launch.modal deploy` hands over: one SGLang server behind a URL that asks for a key.

Modal imports this file by itself, here to deploy it and again in the container, and calls nothing beforehand: so the
settings come from one environment variable, which is set in both places, and are read at import.
"""

from __future__ import annotations

import os
import subprocess

import modal

from launch.modal.settings import APP, IMAGE, MODELS, PORT, VARIABLE, command, from_json

START_SECONDS = 30 * 60
DAY = 24 * 60 * 60

served = from_json(os.environ[VARIABLE])
app = modal.App(APP)
image = (
    modal.Image.from_registry(IMAGE)
    .entrypoint([])
    .env({VARIABLE: served.to_json(), "HF_HOME": MODELS})
    .add_local_python_source("launch")
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
    max_containers=1,  # a second copy would not be told of new weights
)
@modal.concurrent(max_inputs=served.concurrency)
@modal.web_server(PORT, startup_timeout=START_SECONDS, requires_proxy_auth=True)
def serve() -> None:
    subprocess.Popen(command(served))
