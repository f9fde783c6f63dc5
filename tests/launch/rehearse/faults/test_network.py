"""A real link between two real namespaces, and programs on both ends of it, before and after it is cut."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import ExitStack

import pytest

from slime_swe.errors import InfrastructureError
from slime_swe.launch.ray.processes import lives
from slime_swe.launch.rehearse.faults.injection import ADDRESSES, Network, two_namespaces
from tests.waiting import wait_for

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="making namespaces needs root")

ECHO = """
import socket, sys
with socket.create_server((sys.argv[1], 7000)) as server:
    print("listens", flush=True)
    while True:
        one = server.accept()[0]
        while said := one.recv(100):
            one.send(said)
"""
ASK = """
import socket, sys
def said(connection, word):
    try:
        connection.send(word)
        return connection.recv(100)
    except OSError as error:
        return type(error).__name__
open_ = socket.create_connection((sys.argv[1], 7000), timeout=10)
print(said(open_, b"before"), flush=True)
sys.stdin.readline()
open_.settimeout(0.5)
print(said(open_, b"while"), flush=True)
try:
    socket.create_connection((sys.argv[1], 7000), timeout=4)
except OSError as error:
    print(type(error).__name__, flush=True)
sys.stdin.readline()
open_.settimeout(20)
print(open_.recv(100), flush=True)
"""


def start(stack: ExitStack, network: Network, node: int, program: str) -> subprocess.Popen[str]:
    words = (*network.inside(node), sys.executable, "-c", program, ADDRESSES[1])
    process = stack.enter_context(subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))
    stack.callback(process.kill)
    return process


@needs_root
def test_a_cut_link_leaves_connections_open_and_nothing_answers_until_it_is_mended():
    with two_namespaces() as network, ExitStack() as stack:
        server = start(stack, network, 1, ECHO)
        assert server.stdout.readline() == "listens\n"
        assert network.processes(1) == [server.pid] and network.processes(0) == []
        client = start(stack, network, 0, ASK)
        assert client.stdout.readline() == "b'before'\n"
        network.cut()
        print(file=client.stdin, flush=True)
        assert client.stdout.readline() == "TimeoutError\n", "of the open connection"
        assert client.stdout.readline() == "TimeoutError\n", "of a new one, and nobody says why"
        network.mend()
        print(file=client.stdin, flush=True)
        assert client.stdout.readline() == "b'while'\n", "sent again by TCP: it was open all the time"


@needs_root
def test_namespaces_end_with_who_has_made_them():
    """Also where that is killed, as by SIGKILL of the drill."""
    program = (
        "import sys; from slime_swe.launch.rehearse.faults.injection import two_namespaces\n"
        "with two_namespaces() as network: print(*network.holders, flush=True); sys.stdin.read()"
    )
    maker = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    holders = [int(word) for word in maker.stdout.readline().split()]
    assert len(holders) == 2 and all(map(lives, holders))
    maker.kill()
    maker.communicate()
    wait_for(lambda: not any(map(lives, holders)), "their end")


def test_without_the_right_the_drill_says_what_it_needs():
    program = (
        "import os; from slime_swe.launch.rehearse.faults.injection import two_namespaces\n"
        "if os.geteuid() == 0: os.setuid(65534)\n"
        "with two_namespaces(): pass"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert f"{InfrastructureError.__name__}: a cut network needs root and iproute2" in done.stderr
