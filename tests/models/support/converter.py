"""A converter as the manifest names one: `python -m tests.models.support.converter SOURCE FOLDER`. Orders lie beside its log."""

from __future__ import annotations

import os
import sys
from pathlib import Path


def main() -> int:
    source, folder = Path(sys.argv[1]), Path(sys.argv[2])
    with Path(os.environ["TEST_CONVERSIONS"]).open("a") as log:
        log.write("converted\n")
    (folder / "out").mkdir()
    (folder / "out" / "first.bin").write_bytes(source.read_bytes()[::-1])
    if Path(os.environ["TEST_CONVERSIONS"]).with_name("break").exists():
        print("the converter broke", file=sys.stderr)
        return 3
    (folder / "second.bin").write_bytes(b"second")
    return 0


if __name__ == "__main__":
    sys.exit(main())
