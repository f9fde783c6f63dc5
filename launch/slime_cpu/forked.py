"""Ray starts its workers by this program, with a worker's program and arguments. It asks the fork server in FOLDER for
one, and ends with that, or with the server; without a server it becomes an ordinary worker.

    python -IS forked.py FOLDER default_worker.py ARGUMENT ...
"""

import json
import os
import socket
import sys


def address(folder: str) -> str:
    """Return the address of the server in `folder`, for this process's network namespace alone: workers are in the
    server's own."""
    return f"{folder}/{os.stat('/proc/self/ns/net').st_ino}"


def main(folder: str, *argv: str) -> None:
    connection = socket.socket(socket.AF_UNIX)
    try:
        connection.connect(address(folder))
    except OSError:
        os.execv(sys.executable, [sys.executable, *argv])
    asked = json.dumps({"argv": argv, "folder": os.getcwd(), "environment": dict(os.environ)}).encode()
    socket.send_fds(connection, [len(asked).to_bytes(4, "big")], [0, 1, 2])
    connection.sendall(asked)
    for files in (0, 1, 2):
        os.close(files)  # the worker has them
    connection.recv(1)  # nothing is sent: it is closed when the worker has ended


if __name__ == "__main__":
    main(*sys.argv[1:])
