"""A real browser on a real server: where they come from, and what the tests do with them."""

import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
DONE = '[data-testid="stApp"][data-test-script-state="notRunning"]'
WAIT_MS = 20_000


def free_port() -> int:
    with socket.socket() as trial:
        trial.bind(("127.0.0.1", 0))
        return int(trial.getsockname()[1])


@contextmanager
def serving(home: Path) -> Iterator[str]:
    """Address of a page of its own, without settings of whoever runs the tests."""
    port, log = free_port(), home / "log"
    clean = {name: value for name, value in os.environ.items() if not name.startswith("STREAMLIT_")}
    with log.open("w") as out:
        server = subprocess.Popen(
            [sys.executable, "-m", "perfmodel", "ui", "--port", str(port), "--no-browser"],
            stdout=out, stderr=out, cwd=home, env={**clean, "HOME": str(home), "PYTHONPATH": os.pathsep.join(sys.path)},
        )  # fmt: skip
    try:
        for _ in range(150):
            assert server.poll() is None, log.read_text()
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/_stcore/health", timeout=1):
                    break
            except OSError:
                time.sleep(0.2)
        yield f"http://127.0.0.1:{port}"
    finally:
        server.terminate()
        server.wait(10)
    assert "Traceback" not in log.read_text(), log.read_text()
