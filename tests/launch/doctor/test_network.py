"""Ports in use and servers that answer, or don't: real sockets."""

from __future__ import annotations

import json
import socket
from contextlib import closing, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import pytest

from slime_swe.launch.doctor import Machine, Status, guarded
from slime_swe.launch.doctor.network import check_interface, check_ports, check_proxies
from tests.recipes.changes import variant

pytestmark = pytest.mark.xdist_group("ray")  # these see each other's Ray


@contextmanager
def listening():
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        yield server.getsockname()[1]


@contextmanager
def serving(answers: dict[str, str]):
    """An HTTP server with these answers, 503 for all else; its `host:port`."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            text = answers.get(self.path)
            self.send_response(503 if text is None else 200)
            self.end_headers()
            self.wfile.write((text or "").encode())

        def log_message(self, *words: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


def ports(**changes):
    return list(check_ports(variant("qwen25_coder_7b", **changes), Machine()))


@pytest.fixture
def without_proxies(monkeypatch):
    for name in ("http_proxy", "https_proxy", "all_proxy"):
        for each in (name, name.upper()):
            monkeypatch.delenv(each, raising=False)
    return monkeypatch


def proxies():
    (finding,) = check_proxies(variant("qwen25_coder_7b"), Machine())
    return finding


def test_proxies_are_said_and_one_that_slime_can_not_use_is_a_warning(without_proxies):
    assert (proxies().status, proxies().message) == (Status.OK, "none is set")
    without_proxies.setenv("https_proxy", "http://me:secret@proxy:3128")
    assert proxies().status == Status.OK
    assert "https_proxy=http://proxy:3128" in proxies().message and "secret" not in proxies().message
    without_proxies.setenv("ALL_PROXY", "socks5://proxy:1080")
    assert proxies().status == Status.WARNING and "ALL_PROXY=socks5://proxy:1080" in proxies().message


@pytest.mark.parametrize(
    ("changes", "status"),
    [
        ({}, Status.OK),
        ({"cluster__interface": "lo"}, Status.OK),
        ({"cluster__interface": "none7"}, Status.FAILURE),
        ({"cluster__interface": "none7", "cluster__ray_address": "http://elsewhere:8265"}, Status.SKIPPED),
    ],
)
def test_an_interface_must_be_one_of_the_machine_that_trains(changes, status):
    (finding,) = check_interface(variant("qwen25_coder_32b", **changes), Machine())
    assert finding.status == status
    assert status != Status.FAILURE or "use one of lo" in finding.fix


def test_a_name_that_is_the_loopbacks_is_a_warning_on_a_cluster_that_was_there(monkeypatch):
    monkeypatch.setattr(socket, "gethostbyname", lambda name: "127.0.1.1")  # as Debian has it in /etc/hosts
    there = variant("qwen25_coder_32b", cluster__ray_address="http://elsewhere:8265")
    assert [finding.status for finding in check_interface(there, Machine())] == [Status.WARNING]
    assert [finding.status for finding in check_interface(variant("qwen25_coder_32b"), Machine())] == [Status.OK]


def test_a_port_in_use_is_a_failure_and_a_free_one_is_not():
    with listening() as port:
        (finding,) = ports(serving__router_port=port)
        assert finding.status == Status.FAILURE
        assert f"serving.router_port={port} can't be had: Address already in use" in finding.message
        assert f"sport = :{port}" in finding.fix
    (finding,) = ports(serving__router_port=port)
    assert finding.status == Status.OK


def test_no_port_asked_for_is_fine():
    assert [finding.status for finding in ports()] == [Status.OK]


@pytest.mark.parametrize("field", ("router", "engines"))
def test_servers_that_the_recipe_names_must_be_healthy(field):
    def named(address: str):
        host, _, port = address.rpartition(":")
        if field == "router":
            return ports(serving__router_ip=host, serving__router_port=int(port))[0]
        return ports(serving__external_engines=[address])[-1]

    with serving({"/health": ""}) as address:
        assert named(address).status == Status.OK
    gone = named(address)
    assert gone.status == Status.FAILURE and "does not answer" in gone.message and "refused" in gone.message
    with serving({}) as address:
        assert "answers /health with 503" in named(address).message


def test_an_address_that_is_none_is_a_failure_and_no_crash():
    assert ports(serving__external_engines=["no host at all"])[-1].status == Status.FAILURE


def test_a_proxy_of_the_environment_is_not_asked(monkeypatch):
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    with serving({"/health": ""}) as address:
        assert ports(serving__external_engines=[address])[-1].status == Status.OK


def test_a_ray_cluster_that_is_not_there():
    with serving({"/health": ""}) as address:
        for given in (f"http://{address}", "http://127.0.0.1:9", "http://no host at all"):
            (finding,) = guarded("ray", variant("qwen25_coder_7b", cluster__ray_address=given), Machine())
            assert finding.status == Status.FAILURE and "no Ray dashboard answers there" in finding.message


@pytest.mark.slow
def test_a_real_ray_is_seen_and_can_be_used(monkeypatch):
    """A head without GPUs: too few for the recipe, of the version that is installed here, and locked at first."""
    ray = pytest.importorskip("ray")
    from slime_swe.launch.ray.node import Node, wait_for_nodes

    node, head = Node.head("127.0.0.1", "127.0.0.1")
    with node:
        wait_for_nodes(head, 1, 300, node.require_alive)
        (beside,) = guarded("ray", variant("qwen25_coder_7b"), Machine())
        assert beside.status == Status.FAILURE and "Ray runs on this machine already" in beside.message
        named = variant("qwen25_coder_7b", cluster__ray_address=head.dashboard)
        (locked,) = guarded("ray", named, Machine())
        assert locked.status == Status.FAILURE and "RAY_AUTH_TOKEN" in locked.message
        monkeypatch.setenv("RAY_AUTH_TOKEN", head.token)
        version, gpus = guarded("ray", named, Machine())
        assert ray.__version__ in version.message
        assert gpus.status == Status.FAILURE and "asks for 8 GPUs" in gpus.message


def test_a_ray_of_another_version_is_a_warning():
    """Only its version is asked for before its nodes, which this one can't tell."""
    with serving({"/api/version": json.dumps({"ray_version": "2.41.0"})}) as address:
        findings = guarded("ray", variant("qwen25_coder_7b", cluster__ray_address=f"http://{address}/"), Machine())
        first = next(iter(findings))
    assert (
        first.status == Status.WARNING
        and "2.41.0" in first.message
        and address in first.fix
        and "2.60.0" in first.message
    )
