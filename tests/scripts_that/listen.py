"""Needs the port PORT to itself, as a rank with a store does; then a whole report at once."""

import os
import runpy
import socket
from pathlib import Path

from scaling_study.worker.script import run


def join(trial):
    with socket.socket() as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind(("127.0.0.1", int(os.environ["PORT"])))
        server.listen()
    runpy.run_path(str(Path(__file__).with_name("take_a_second.py")))


run("single", join, build=None)
