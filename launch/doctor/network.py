"""Checks of ports that must be free, and of servers that must be there."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import closing
from http.client import HTTPException
from urllib.error import HTTPError
from urllib.request import ProxyHandler, build_opener

from slime_swe.launch.doctor import Finding, Machine, failure, ok, skipped, warning
from slime_swe.launch.doctor.versions import judged, packages, upstream_of
from slime_swe.launch.ray.dashboard import reaching
from slime_swe.launch.ray.jobs import existing, require_gpus, require_no_ray
from slime_swe.launch.ray.network import listed, proxies, speaks_socks
from slime_swe.recipes.base import Recipe

ANSWER_SECONDS = 5.0


def check_ports(recipe: Recipe, machine: Machine) -> Iterator[Finding]:
    """Check that the router's port is free where this run starts a router; else that the router answers there. So must
    external engines."""
    ip, port = recipe.serving.router_ip, recipe.serving.router_port
    if ip:
        host = f"[{ip}]" if ":" in ip else ip
        yield _healthy("router", f"{host}:{port}", "start it, or leave serving.router_ip empty for one of this run")
    elif port:
        yield _free(port)
    else:
        yield ok("ports", "taken at random among the free ones (serving.router_port=0)")
    for address in recipe.serving.external_engines:
        yield _healthy("engine", address, "start it, or take it out of serving.external_engines")


def check_ray(recipe: Recipe, machine: Machine) -> Iterator[Finding]:
    """Check that the named cluster answers, has the tested version and the GPUs; without one, that no Ray is here."""
    cluster, tested = recipe.cluster, packages(upstream_of(recipe))["ray"]
    if cluster.ray_address:
        address, version = existing(cluster.ray_address)
        yield judged("ray", version, tested, f"start the cluster at {address} from the image")
        with reaching(address):
            require_gpus(cluster, address)
        return
    require_no_ray()
    if cluster.nodes > 1:
        yield warning(
            "ray",
            f"cluster.nodes={cluster.nodes} wants a cluster over these machines, and cluster.ray_address is empty",
            "submit launch/slurm/train.sbatch, which starts one; else start one and give its dashboard's address",
        )
    else:
        yield ok("ray", "none runs on this machine; the run starts its own")


def check_proxies(recipe: Recipe, machine: Machine) -> Iterator[Finding]:
    """Say what a run does with this shell's proxies: its own machines are reached without, and SOCKS is left out."""
    found = proxies()
    socks = [name for name, proxy in found.items() if speaks_socks(proxy)]
    if not found:
        yield ok("proxies", "none is set")
    elif socks:
        yield warning(
            "proxies",
            f"{listed(socks, found)} is left out of the run, as SLiME's HTTP client does not speak SOCKS",
            "give an http:// proxy where the run needs one for hosts outside of the cluster, such as a tracker's",
        )
    else:
        yield ok("proxies", f"{listed(found, found)}: for hosts outside of the cluster, whose own go in no_proxy")


def check_interface(recipe: Recipe, machine: Machine) -> Iterator[Finding]:
    """Check that `cluster.interface` is one of this machine's; if empty, that gloo would not take the loopback's."""
    cluster, named = recipe.cluster, recipe.cluster.interface
    present = [name for _, name in socket.if_nameindex()]
    if named and cluster.ray_address:
        yield skipped("interface", f"cluster.interface={named} is that of the machines of {cluster.ray_address}")
    elif named and named not in present:
        fix = f"use one of {', '.join(present)}, or leave it empty"
        yield failure("interface", f"cluster.interface={named}: this machine has none of that name", fix)
    elif named:
        yield ok("interface", f"cluster.interface={named}")
    elif cluster.ray_address and cluster.nodes > 1 and (loopback := _loopback()):
        yield warning(
            "interface",
            f"{socket.gethostname()} resolves to {loopback}, whose interface gloo takes unless it is told another",
            "set cluster.interface to the one that the machines share, such as eth0",
        )
    else:
        yield ok("interface", "gloo takes that of the node's address, and NCCL finds its own")


def _loopback() -> str:
    """Return the loopback address that this machine's name resolves to; empty where it is another."""
    try:
        address = socket.gethostbyname(socket.gethostname())
    except OSError:
        return ""
    return address if address.startswith("127.") else ""


def _free(port: int) -> Finding:
    with closing(socket.socket(socket.AF_INET, socket.SOCK_STREAM)) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            sock.bind(("", port))
        except OSError as error:
            return failure(
                "ports",
                f"serving.router_port={port} can't be had: {error.strerror}",
                f"`ss -ltnp sport = :{port}` says who has it; or set serving.router_port=0 for any free one",
            )
    return ok("ports", f"serving.router_port={port} is free")


def _healthy(check: str, address: str, fix: str) -> Finding:
    try:
        with build_opener(ProxyHandler({})).open(f"http://{address}/health", timeout=ANSWER_SECONDS):
            return ok(check, f"{address} is healthy")
    except HTTPError as error:
        return failure(check, f"{address} answers /health with {error.code}", fix)
    except (OSError, ValueError, HTTPException) as error:
        return failure(check, f"{address} does not answer: {getattr(error, 'reason', '') or error!r}", fix)
