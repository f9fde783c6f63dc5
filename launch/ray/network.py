"""How a job's processes reach each other: past the user's proxies, by which network interface, and at which ports."""

from __future__ import annotations

import fcntl
import os
import socket
import struct
from collections.abc import Iterable, Mapping
from contextlib import ExitStack, suppress
from urllib.parse import urlsplit

PROXIES = ("http_proxy", "https_proxy", "all_proxy")
EXEMPT = ("no_proxy", "NO_PROXY")
LOCAL = ("localhost", "127.0.0.1", "::1")
GLOO = ("GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME")
_SIOCGIFADDR = 0x8915


def proxies(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Map each variable that is set, as it is spelt, to its proxy."""
    return {name: environment[name] for each in PROXIES for name in (each, each.upper()) if environment.get(name)}


def speaks_socks(proxy: str) -> bool:
    """Say whether SLiME's HTTP client can't use a proxy: `httpx` refuses to start without a package for SOCKS."""
    return urlsplit(proxy).scheme.startswith("socks")


def past_proxies(hosts: Iterable[str], environment: Mapping[str, str] = os.environ) -> tuple[dict[str, str], list[str]]:
    """Return variables for a job whose processes ask each other on `hosts` by HTTP, and what to say of proxies.

    What the user has exempted stays exempt, and what lies elsewhere is still reached by a proxy, unless it is one that
    SLiME can't use: its variable is emptied, in both spellings.
    """
    own = (host for name in EXEMPT for host in environment.get(name, "").split(","))
    exempt = ",".join(dict.fromkeys(host for host in (*LOCAL, *hosts, *own) if host))
    found = proxies(environment)
    emptied = [name for name, proxy in found.items() if speaks_socks(proxy)]
    kept = [name for name in found if name not in emptied]
    said = [f"{listed(kept, found)}: for hosts outside of the cluster ({EXEMPT[0]}={exempt})"] if kept else []
    if emptied:
        said.append(f"{listed(emptied, found)}: left out of the job, as SLiME's HTTP client does not speak SOCKS")
    both = {name: "" for each in emptied for name in (each.lower(), each.upper())}
    return dict.fromkeys(EXEMPT, exempt) | both, said


def listed(names: Iterable[str], found: Mapping[str, str]) -> str:
    """List the variables with the hosts of their proxies, whose addresses may hold a password."""
    return ", ".join(f"{name}={host_of(found[name])}" for name in names)


def host_of(proxy: str) -> str:
    address = urlsplit(proxy if "//" in proxy else f"//{proxy}")
    return address._replace(netloc=address.netloc.rpartition("@")[2]).geturl()


def by_interface(name: str) -> dict[str, str]:
    """Return the variables by which gloo, tensorpipe and NCCL take this interface."""
    return dict.fromkeys((*GLOO, "NCCL_SOCKET_IFNAME"), name)


def at_address(address: str) -> dict[str, str]:
    """Return the variables by which gloo takes the interface that has this address; none for the loopback's.

    By itself gloo takes the one of the machine's name, which many machines resolve to the loopback. NCCL looks for a
    fast one by itself.
    """
    found = interface_of(address)
    return dict.fromkeys(GLOO, found) if found and not address.startswith("127.") else {}


def interface_of(address: str) -> str:
    """Name the network interface of this machine that has the IPv4 address; empty where none has it."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        for _, name in socket.if_nameindex():
            with suppress(OSError):  # it has no IPv4 address
                request = struct.pack("256s", name.encode())
                if socket.inet_ntoa(fcntl.ioctl(asked, _SIOCGIFADDR, request)[20:24]) == address:
                    return name
    return ""


def address_towards(peer: str) -> str:
    """Return the address of this machine that `host:port` sees. Nothing is sent."""
    host, _, port = peer.rpartition(":")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((host, int(port)))
        return str(probe.getsockname()[0])


def free_ports(count: int, host: str = "") -> list[int]:
    """Find ports that nobody listens on now, all different."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind((host, 0))
        return [int(one.getsockname()[1]) for one in sockets]
