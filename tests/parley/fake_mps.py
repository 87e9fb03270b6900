"""A stand-in for nvidia-cuda-mps-control: a real program that forks a daemon and a server, and answers over a socket."""

from __future__ import annotations

import sys
from pathlib import Path

from parley.supervisor.mps import CONTROL

# the program's own name must be in the first line: the kernel calls the process by it
PROGRAM = """#!{python} -IS
import os, signal, socket, sys, time
mode = os.environ.get("FAKE_MPS", "")
os.chdir(os.environ.get("CUDA_MPS_PIPE_DIRECTORY", "/tmp/nvidia-mps"))
PID = "nvidia-cuda-mps-control.pid"

def answer(line, server):
    if line == "get_server_list":
        return "%d\\n" % server
    if line.startswith("get_server_status "):
        return "FAULT\\n" if os.path.exists("fault") else "ACTIVE\\n"
    if line == "quit":
        if mode != "stubborn":
            os.kill(server, signal.SIGKILL)
            os.unlink(PID); os.unlink("control")
            raise SystemExit
        time.sleep(60)
    return "unknown command\\n"

def serve(listener):
    os.setsid()
    server = os.fork()
    if not server:
        listener.close()
        while True: signal.pause()
    with open("born", "w") as file: file.write(os.environ.get("CUDA_VISIBLE_DEVICES", "all") + " " + str(server))
    with open(PID, "w") as file: file.write(str(os.getpid()))
    while True:
        peer, _ = listener.accept()
        with peer:
            line = peer.makefile().readline().strip()
            if mode == "mute": continue
            try:
                peer.sendall(answer(line, server).encode())
            except OSError:
                pass
            except SystemExit:
                peer.sendall(b"bye\\n")
                raise

if sys.argv[1:] == ["-d"]:
    if mode == "refuses" or os.path.exists(PID):
        sys.exit("An instance of this daemon is already running")
    if os.path.exists("control"): os.unlink("control")
    listener = socket.socket(socket.AF_UNIX); listener.bind("control"); listener.listen()
    if not os.fork(): serve(listener)
    sys.exit(0)
line = sys.stdin.readline()
with socket.socket(socket.AF_UNIX) as client:
    try:
        client.connect("control")
    except OSError:
        sys.exit("Cannot find MPS control daemon process")
    client.sendall(line.encode())
    said = client.makefile().read()
    if not said: sys.exit(1)
    if said != "bye\\n": print(said, end="")
"""


def install(folder: Path) -> str:
    """Writes it; answers its path. The environment's FAKE_MPS makes it "refuses", "mute", or "stubborn" (no quit)."""
    folder.mkdir(exist_ok=True)
    program = folder / CONTROL
    program.write_text(PROGRAM.format(python=sys.executable))
    program.chmod(0o755)
    return str(program)


def processes(pipes: Path) -> dict[str, int]:
    """Those that serve in this folder; the server is named with the cards that it sees."""
    cards, server = (pipes / "born").read_text().split()
    return {"daemon": int((pipes / f"{CONTROL}.pid").read_text()), f"server of {cards}": int(server)}
