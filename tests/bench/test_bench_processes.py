"""Processes that are started: none hears Ctrl-C, the first as little as the others."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SCRIPT = """
import signal, sys
from pathlib import Path

from tracecvr.bench.engines.local import start_process


def deaf(path):
    Path(path).write_text(str(signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, [])))


if __name__ == "__main__":
    for path in sys.argv[1:]:
        start_process(deaf, (path,), {}).join()
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, [])
"""


UNGUARDED = """
import os, sys
from tracecvr.bench.engines.local import start_process

print("begin", flush=True)
process = start_process(os.mkdir, (sys.argv[1],), {})
process.join()
print(process.exitcode, __name__)
"""


def test_a_script_without_a_guard_is_not_run_again(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(UNGUARDED)
    run = subprocess.run(
        [sys.executable, script, tmp_path / "made"], check=True, timeout=60, capture_output=True, text=True
    )
    assert run.stdout.split() == ["begin", "0", "__main__"]
    assert (tmp_path / "made").is_dir()


def test_no_process_hears_ctrl_c(tmp_path: Path) -> None:
    script, said = tmp_path / "script.py", [tmp_path / "first", tmp_path / "second"]
    script.write_text(SCRIPT)
    subprocess.run([sys.executable, script, *said], check=True, timeout=60)
    assert [path.read_text() for path in said] == ["True", "True"]
