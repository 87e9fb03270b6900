"""Runs as `python -I -S launch.py PARENT_PID PROGRAM ARGUMENT...`: ties the process to its parent's life, then becomes the program.

A program of its own, not a preexec_fn: Python code between fork and exec may deadlock in a process that has threads.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def main() -> None:
    parent, program = int(sys.argv[1]), sys.argv[2:]
    if sys.platform == "linux" and ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL)) != 0:
        sys.exit(f"prctl: {os.strerror(ctypes.get_errno())}")
    # the parent may have died before the request above took effect
    if os.getppid() != parent:
        sys.exit("the supervisor is gone")
    try:
        os.execvp(program[0], program)
    except OSError as error:
        sys.exit(f"cannot start {program[0]}: {error.strerror}")


if __name__ == "__main__":
    main()
