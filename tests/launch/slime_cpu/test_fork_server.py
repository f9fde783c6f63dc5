"""The fork server, with its own client and programs in the place of Ray's worker, and what workers are set up with.

tests/contract shows the same of SLiME's own actors.
"""

from __future__ import annotations

import os
import shlex
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("wrapt", reason="comes with Ray")

from slime_swe.launch.slime_cpu.fork_server import fork_server
from slime_swe.launch.slime_cpu.forked import address
from tests.waiting import wait_for

SAYS = """
import os, sys
given = sys.argv[1:], os.environ.get("OF_THIS"), os.getcwd()
print(*given, "colorsys" in sys.modules, __name__, os.getpid(), flush=True)
print("to stderr", file=sys.stderr, flush=True)
sys.exit(sys.stdin.readline() == "ended badly")
"""


@pytest.fixture
def program(tmp_path):
    (tmp_path / "worker.py").write_text(SAYS)
    return str(tmp_path / "worker.py")


@pytest.fixture
def executable():
    with fork_server(["colorsys"]) as words:
        yield shlex.split(words)


def start(words: list[str], program: str, *arguments: str, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*words, program, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=os.environ | environment,
        cwd=Path(program).parent,
        text=True,
    )


def is_there(process: int) -> bool:
    state = read(Path(f"/proc/{process}/stat")).rpartition(b")")[2].split()[:1]
    return state not in ([], [b"Z"])


def test_a_worker_has_its_own_arguments_environment_folder_and_files(executable, program):
    asked = [start(executable, program, f"--number={number}", OF_THIS=str(number)) for number in range(3)]
    said = [client.communicate("\n") for client in asked]
    folder = str(Path(program).parent)
    for number, (out, err) in enumerate(said):
        assert out.rpartition(" ")[0] == f"['--number={number}'] {number} {folder} True __main__"
        assert err == "to stderr\n"
    assert len({out.split()[-1] for out, _ in said}) == 3, "each is a process of its own"


def test_the_end_of_a_worker_is_that_of_its_client_and_the_other_way(executable, program):
    asked = [start(executable, program) for _ in range(2)]
    workers = [int(client.stdout.readline().split()[-1]) for client in asked]
    assert all(map(is_there, workers)) and workers[0] != asked[0].pid
    assert [os.getpgid(worker) for worker in workers] == workers, "Ray ends a worker's whole group"
    asked[0].kill()  # as Ray ends a worker that it has started
    wait_for(lambda: not is_there(workers[0]), "the worker's end")
    assert is_there(workers[1])
    os.kill(workers[1], signal.SIGKILL)
    assert asked[1].wait(30) == 0
    assert start(executable, program).communicate("\n")[0], "the server goes on"
    asked[0].communicate(), asked[1].communicate()


def test_workers_outlive_the_server_which_ends_with_its_process(program):
    with fork_server(["colorsys"]) as words:
        client = start(shlex.split(words), program)
        worker = int(client.stdout.readline().split()[-1])
    assert is_there(worker)
    assert client.wait(30) == 0, "nobody holds its connection any more"
    os.kill(worker, signal.SIGKILL)
    client.communicate()


def test_what_a_worker_spawns_does_not_import_its_program_again(executable, tmp_path):
    (tmp_path / "spawns.py").write_text(
        "import multiprocessing\nprint('imported', flush=True)\n"
        "print(multiprocessing.get_context('spawn').Pool(1).apply(abs, [-7]), flush=True)\n"
    )
    out, err = start(executable, str(tmp_path / "spawns.py")).communicate(timeout=60)
    assert out.split() == ["imported", "7"], err


def test_clients_of_a_server_that_has_died_do_not_wait_for_it(program):
    def servers() -> list[Path]:
        started = (path for path in Path("/proc").glob("[0-9]*") if started_by(path, os.getpid()))
        return [path for path in started if b"slime_cpu.fork_server" in read(path / "cmdline")]

    with fork_server(["json"]) as words:
        wait_for(servers, "the server")  # a process has no command line yet when its exec has just succeeded
        (server,) = servers()
        os.kill(int(server.name), signal.SIGKILL)
        wait_for(lambda: not is_there(int(server.name)), "the server's end")
        out, _ = start(shlex.split(words), program, "a").communicate("\n", timeout=30)
    assert out.startswith("['a']")


@pytest.mark.parametrize("said", [b"", b"\0\0", b"\0\0\0\x09", b"\0\0\0\x09{"])
def test_a_client_that_ends_before_it_has_asked_is_no_end_of_others(executable, program, said):
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(address(executable[-1]))
        connection.sendall(said)
    assert start(executable, program, "a").communicate("\n", timeout=30)[0].startswith("['a']")


def test_without_a_server_a_worker_is_an_ordinary_process(program):
    with fork_server(["json"]) as words:
        pass
    client = start(shlex.split(words), program, "a", OF_THIS="1")
    out, _ = client.communicate("\n")
    assert out.split()[:2] == ["['a']", "1"] and int(out.split()[-1]) == client.pid
    assert "False" in out, "it has imported nothing beforehand"


@pytest.mark.skipif(os.geteuid() != 0, reason="making a network namespace needs root")
def test_a_worker_of_another_network_namespace_is_an_ordinary_process(executable, program):
    """One that the server forks would be in the server's."""
    client = start(["unshare", "--net", *executable], program)
    out, _ = client.communicate("\n")
    assert int(out.split()[-1]) == client.pid and "False" in out


def test_the_driver_need_not_end_it(tmp_path):
    code = (
        "import sys; from slime_swe.launch.slime_cpu.fork_server import fork_server\n"
        "with fork_server(['json']) as words: print(words, flush=True); sys.stdin.read()"
    )
    driver = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=os.environ
    )
    address = shlex.split(driver.stdout.readline())[-1]
    servers = [path.name for path in Path("/proc").glob("[0-9]*") if started_by(path, driver.pid)]
    assert len(servers) == 1 and Path(address).exists()
    driver.kill()
    driver.communicate()
    wait_for(lambda: not is_there(int(servers[0])), "the server's end")


def started_by(process: Path, parent: int) -> bool:
    return read(process / "stat").rpartition(b")")[2].split()[1:2] == [str(parent).encode()]


def read(path: Path) -> bytes:
    """What a file of a process says; nothing once that has ended, be it between the opening and the reading."""
    try:
        return path.read_bytes()
    except OSError:
        return b""


LIGHT = """
import sys
from slime_swe.launch.slime_cpu.fork_server import set_up
set_up()
assert "torch" not in sys.modules
import torch
print(torch.ones(1, device="cuda", pin_memory=True).device, torch.cuda.current_device())
"""


def test_a_worker_has_the_shims_with_pytorch_and_not_before():
    done = subprocess.run([sys.executable, "-c", LIGHT], capture_output=True, text=True)
    assert done.stdout.split() == ["cpu", "cpu"], done.stderr
