"""Proxies and network interfaces of a job: what HTTP clients do with the first, and this machine's own."""

from __future__ import annotations

from urllib.request import getproxies_environment, proxy_bypass_environment

import pytest

from slime_swe.launch.ray.dashboard import OVERRIDING
from slime_swe.launch.ray.network import GLOO, at_address, by_interface, interface_of, past_proxies
from slime_swe.launch.ray.node import HOST_IP, environment_at

HOSTS = ("10.1.2.3", "10.1.2.4", "node17")
HTTP = {"http_proxy": "http://me:secret@proxy:3128", "HTTPS_PROXY": "proxy:3128", "no_proxy": "files.example.org"}


@pytest.fixture
def within(monkeypatch):
    """The environment of a job's process."""

    def enter(given: dict[str, str]) -> list[str]:
        for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
            for each in (name, name.upper()):
                monkeypatch.delenv(each, raising=False)
        added, said = past_proxies(HOSTS, given)
        for name, value in {**given, **added}.items():
            monkeypatch.setenv(name, value)
        return said

    return enter


def test_the_nodes_are_reached_directly_and_others_by_the_proxy(within):
    (said,) = within(HTTP)
    assert all(proxy_bypass_environment(host) for host in (*HOSTS, "localhost", "127.0.0.1", "files.example.org"))
    assert not proxy_bypass_environment("huggingface.co") and set(getproxies_environment()) >= {"http", "https"}
    assert "http_proxy=http://proxy:3128" in said and "secret" not in said and "10.1.2.4" in said


def test_socks_is_left_out_and_said(within):
    (said,) = within({"all_proxy": "socks5h://proxy:1080", "ALL_PROXY": "socks5h://proxy:1080"})
    assert "all" not in getproxies_environment()
    assert "all_proxy=socks5h://proxy:1080" in said and "left out of the job" in said


def test_without_a_proxy_nothing_is_said_and_the_nodes_may_have_one(within):
    assert within({}) == []
    assert proxy_bypass_environment("10.1.2.3")


def test_slimes_own_clients_take_them(within):
    """httpx, with which SLiME asks its router, and requests, with which its engines register there."""
    httpx, requests = pytest.importorskip("httpx"), pytest.importorskip("requests")
    within({**HTTP, "all_proxy": "socks5://proxy:1080"})
    client = httpx.Client()
    for host in HOSTS:
        url = f"http://{host}:30000/generate"
        assert requests.utils.should_bypass_proxies(url, None)
        assert client._transport_for_url(httpx.URL(url)) is client._transport
    assert client._transport_for_url(httpx.URL("http://huggingface.co")) is not client._transport


def test_the_interface_of_an_address():
    assert interface_of("127.0.0.1") == "lo"
    assert interface_of("192.0.2.1") == "", "an address for documentation"
    assert at_address("127.0.0.1") == {}, "one machine"
    assert set(by_interface("eth0")) == {*GLOO, "NCCL_SOCKET_IFNAME"}


@pytest.mark.parametrize(
    ("address", "given", "bound"),
    [("10.1.2.3", {}, "10.1.2.3"), ("10.1.2.3", {HOST_IP: "10.9.9.9"}, "10.9.9.9"), ("127.0.0.1", {}, None)],
)
def test_slimes_router_binds_to_the_address_of_its_node(address, given, bound):
    inherited = {"PATH": "/bin", OVERRIDING[0]: "10.1.2.4:6379", **given}
    found = environment_at(address, inherited)
    assert found.get("SLIME_HOST_IP") == bound
    assert found["PATH"] == "/bin" and OVERRIDING[0] not in found
