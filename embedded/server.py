"""`python -m slime_swe.embedded.server --model DIR`: a small Qwen2 behind SGLang's HTTP protocol, on a CPU.

Prints one JSON line, {"url": …, "pid": …, "batch_invariant": …}, on standard output when it is ready.
"""

from __future__ import annotations

import argparse
import asyncio
import ctypes
import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

from aiohttp import web

from slime_swe.embedded.api import Api
from slime_swe.embedded.engine import Engine
from slime_swe.embedded.exact_forward import is_batch_invariant
from slime_swe.embedded.model import CacheError, Qwen2
from slime_swe.embedded.protocol import Detokenizer, Limits, url_of
from slime_swe.embedded.workers import set_threads
from slime_swe.errors import InfrastructureError, UserError

PR_SET_PDEATHSIG = 1
VERSION = "embedded-0.1"


class ListenError(InfrastructureError):
    """The address or port can't be had."""


def main(argv: list[str] | None = None) -> int:
    """Serve until SIGTERM or SIGINT (exit status 0); 2 for a checkpoint that cannot be served, 1 for a crash."""
    args = _parser().parse_args(argv)
    if args.die_with_parent is not None:
        _die_with_parent(args.die_with_parent)
    set_threads(args.threads)
    # The engine's thread gives the interpreter lock away at every tensor operation and must get it back quickly.
    sys.setswitchinterval(2e-4)
    try:
        return asyncio.run(_serve(args))
    except (UserError, CacheError, OSError) as error:
        print(f"cannot serve {args.model}: {error}", file=sys.stderr)
    except ListenError as error:
        print(error, file=sys.stderr)
    return 2


async def _serve(args: argparse.Namespace) -> int:
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    crashed = []

    def on_exit() -> None:
        crashed.append(not stopping.is_set())
        loop.call_soon_threadsafe(stopping.set)

    api, max_body = _build(args, on_exit), args.max_body_bytes
    runner = web.AppRunner(api.app(max_body), handler_cancellation=True, access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    await _listen(runner, args.host, args.port)
    api.engine.start()
    url = url_of(*runner.addresses[0][:2])
    print(json.dumps({"url": url, "pid": os.getpid(), "batch_invariant": api.info["batch_invariant"]}), flush=True)
    await stopping.wait()
    await asyncio.to_thread(api.engine.stop)
    await runner.cleanup()
    return int(any(crashed))


async def _listen(runner: web.AppRunner, host: str, port: int) -> None:
    try:
        await web.TCPSite(runner, host, port).start()
    except OSError as error:
        raise ListenError(f"cannot listen on {host}:{port}: {error}") from error


def _build(args: argparse.Namespace, on_exit: Callable[[], None]) -> Api:
    directory = Path(args.model)
    tokenizer = Detokenizer(directory)
    model = Qwen2.load(directory)
    context = args.context_length or min(model.config.max_position_embeddings, 4096)
    engine = Engine(
        model,
        slots=args.slots,
        max_length=context,
        decode=tokenizer.decode,
        on_exit=on_exit,
    )
    engine.model_path = str(directory)
    invariant = is_batch_invariant(model.config)
    if not invariant:
        print("warning: on this machine results depend on the batch; runs are not reproducible", file=sys.stderr)
    info = {
        "version": VERSION,
        "tokenizer_path": str(directory),
        "context_length": context,
        "random_seed": args.seed,
        "max_running_requests": args.slots,
        "device": "cpu",
        "threads": args.threads,
        "batch_invariant": invariant,
        **{name: 1 for name in ("tp_size", "dp_size", "pp_size", "ep_size", "num_gpus")},
        "disaggregation_mode": "null",
        "enable_memory_saver": False,
        "enable_metrics": False,
    }
    return Api(engine, tokenizer, Limits(model.config.vocab_size, context), args.seed, info)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m slime_swe.embedded.server", description=__doc__)
    parser.add_argument("--model", required=True, help="directory of a Hugging Face Qwen2 checkpoint")
    parser.add_argument("--host", default="127.0.0.1", help="address to bind (default: loopback only)")
    parser.add_argument("--port", type=int, default=0, help="0 takes a free port")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads of the model")
    parser.add_argument("--seed", type=int, default=0, help="seed of requests that bring none")
    parser.add_argument("--slots", type=int, default=160, help="requests and idle sessions whose context is kept")
    parser.add_argument("--context-length", type=int, help="tokens of one context (default: the model's, at most 4096)")
    parser.add_argument("--max-body-bytes", type=int, default=8 * 2**20, help="larger request bodies are refused (413)")
    parser.add_argument("--die-with-parent", type=int, metavar="PID", help="end when PID, which started this, ends")
    return parser


def _die_with_parent(parent: int) -> None:
    """Linux sends SIGTERM when the parent (the thread that started us) ends; it may have ended already."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    if os.getppid() != parent:
        raise SystemExit(f"process {parent}, which --die-with-parent names, has ended or did not start this server")


if __name__ == "__main__":
    raise SystemExit(main())
