"""What CI runs leaves nothing behind that it began beside: with programs that stand for apt and make."""

from __future__ import annotations

import os
import select
import shutil
import signal
import subprocess
from contextlib import suppress
from pathlib import Path

from tests.support.nursery import ROOT

PROGRAMS = {
    "id": "echo 0",
    "apt-get": 'echo $$ > "$HOUSE/begun"; exec sleep 600',
    "make": 'read -r _ < "$HOUSE/may_fail"; exit 2',
}


def test_no_installation_goes_on_where_make_fails(tmp_path: Path) -> None:
    bin_, script = tmp_path / "bin", tmp_path / ".ci" / "run"
    bin_.mkdir()
    script.parent.mkdir()
    shutil.copy(ROOT / ".ci" / "run", script)
    for name in ("bash", "dirname", "sleep"):
        (bin_ / name).symlink_to(str(shutil.which(name)))
    for name, text in PROGRAMS.items():
        (bin_ / name).write_text(f"#!{bin_}/bash\n{text}\n")
        (bin_ / name).chmod(0o755)
    for pipe in ("begun", "may_fail"):
        os.mkfifo(tmp_path / pipe)
    # no browser is found there
    with subprocess.Popen([bin_ / "bash", script], env={"PATH": str(bin_), "HOUSE": str(tmp_path)}) as run:
        apt = os.pidfd_open(int((tmp_path / "begun").read_text()))
        try:
            (tmp_path / "may_fail").write_text("now\n")
            assert run.wait(30) == 2
            assert select.select([apt], [], [], 10)[0]
        finally:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(apt, signal.SIGKILL)
            os.close(apt)
