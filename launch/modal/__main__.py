"""Serve a model on Modal as an external engine of a SLiME run.

python -m slime_swe.launch.modal deploy --model ORG/NAME --gpu H100 --gpus 2    prints its URL
python -m slime_swe.launch.modal connect URL --port 8100    makes it serving.external_engines=[host:8100]
python -m slime_swe.launch.modal stop
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import fields
from importlib.util import find_spec
from typing import NoReturn

from aiohttp import web

from slime_swe.errors import UserError
from slime_swe.launch.modal.forward import forwarder
from slime_swe.launch.modal.settings import APP, FUNCTION, VARIABLE, Served

KEY_VARIABLES = {"Modal-Key": "MODAL_PROXY_KEY", "Modal-Secret": "MODAL_PROXY_SECRET"}


def deploy(options: argparse.Namespace) -> int:
    served = Served(**{field.name: getattr(options, field.name) for field in fields(Served)})
    code = _modal("deploy", "-m", "slime_swe.launch.modal.app", env={**os.environ, VARIABLE: served.to_json()})
    if code == 0:
        print(_url())
    return code


def stop(options: argparse.Namespace) -> int:
    return _modal("app", "stop", APP, "--yes")


def connect(options: argparse.Namespace) -> int:
    missing = [name for name in KEY_VARIABLES.values() if not os.environ.get(name)]
    if missing:
        raise UserError(
            f"{' and '.join(missing)} must hold a proxy token, which `modal workspace proxy-tokens create` makes: the "
            "URL refuses requests without one"
        )
    headers = {header: os.environ[name] for header, name in KEY_VARIABLES.items()}
    print(f"serving.external_engines=[{options.host}:{options.port}]", flush=True)
    web.run_app(forwarder(options.url, headers), host=options.host, port=options.port, print=None)
    return 0


def _modal(*words: str, env: Mapping[str, str] | None = None) -> int:
    """The exit code of Modal's own command line."""
    if find_spec("modal") is None:
        raise UserError("modal is not installed: pip install 'slime-swe[modal]', then `modal setup`")
    return subprocess.run([sys.executable, "-m", "modal", *words], env=env).returncode


def _url() -> str:
    import modal

    return str(modal.Function.from_name(APP, FUNCTION).get_web_url())


def parser() -> argparse.ArgumentParser:
    build = argparse.ArgumentParser(
        prog="python -m slime_swe.launch.modal",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = build.add_subparsers(required=True)
    deploying = commands.add_parser("deploy", help="serve a model; what served a model before under this name ends")
    for field in fields(Served):
        kind, default = {"int": int, "float": float}.get(str(field.type), str), field.default
        required = field.name == "model"
        deploying.add_argument(f"--{field.name.replace('_', '-')}", type=kind, required=required, default=default)
    deploying.set_defaults(run=deploy)
    commands.add_parser("stop", help="end it, and its costs").set_defaults(run=stop)
    connecting = commands.add_parser("connect", help="make it reachable for SLiME, on this machine")
    connecting.add_argument("url")
    connecting.add_argument("--host", default="127.0.0.1", help="address of this machine that the trainer sees")
    connecting.add_argument("--port", type=int, default=8100)
    connecting.set_defaults(run=connect)
    return build


def main(argv: Sequence[str] | None = None) -> NoReturn:
    options = parser().parse_args(argv)
    try:
        sys.exit(options.run(options))
    except UserError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
