"""How the processes of a job reach each other: past the user's proxies, and by which network interface."""

from __future__ import annotations

import fcntl
import os
import socket
import struct
from collections.abc import Iterable, Mapping
from contextlib import suppress
from urllib.parse import urlsplit

PROXIES = ("http_proxy", "https_proxy", "all_proxy")
EXEMPT = ("no_proxy", "NO_PROXY")
LOCAL = ("localhost", "127.0.0.1", "::1")
GLOO = ("GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME")
_SIOCGIFADDR = 0x8915


def proxies(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Variable, as it is spelt -> proxy, of those that are set."""
    return {name: environment[name] for each in PROXIES for name in (each, each.upper()) if environment.get(name)}


def speaks_socks(proxy: str) -> bool:
    """Whether SLiME's HTTP client can't use it: `httpx` refuses to start where a package for SOCKS is missing."""
    return urlsplit(proxy).scheme.startswith("socks")


def past_proxies(hosts: Iterable[str], environment: Mapping[str, str] = os.environ) -> tuple[dict[str, str], list[str]]:
    """Variables of a job whose processes ask each other on `hosts` by HTTP, and what to say of the user's proxies.

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
    """The variables with their proxies, which may hold a password."""
    return ", ".join(f"{name}={host_of(found[name])}" for name in names)


def host_of(proxy: str) -> str:
    address = urlsplit(proxy if "//" in proxy else f"//{proxy}")
    return address._replace(netloc=address.netloc.rpartition("@")[2]).geturl()


def by_interface(name: str) -> dict[str, str]:
    """Variables by which gloo, tensorpipe and NCCL take this interface."""
    return dict.fromkeys((*GLOO, "NCCL_SOCKET_IFNAME"), name)


def at_address(address: str) -> dict[str, str]:
    """Variables by which gloo takes the interface that has this address; none for the loopback's.

    By itself gloo takes the one of the machine's name, which many machines resolve to the loopback. NCCL looks for a
    fast one by itself.
    """
    found = interface_of(address)
    return dict.fromkeys(GLOO, found) if found and not address.startswith("127.") else {}


def interface_of(address: str) -> str:
    """The network interface of this machine that has the IPv4 address; empty where none has it."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        for _, name in socket.if_nameindex():
            with suppress(OSError):  # it has no IPv4 address
                request = struct.pack("256s", name.encode())
                if socket.inet_ntoa(fcntl.ioctl(asked, _SIOCGIFADDR, request)[20:24]) == address:
                    return name
    return ""
