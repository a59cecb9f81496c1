"""Scripts of their own process that print `counted: {...}`, for tests over replicas and workers."""

import json
import os
import subprocess
import sys
from pathlib import Path

import warm
from warm import HUNG_SECONDS


def start(
    script: Path, kind: str, backend: str = "tensorflow", **environment: str
) -> subprocess.Popen:
    env = {**os.environ, "KERAS_BACKEND": backend, warm.UNOPTIMIZED: "1", **environment}
    command = [sys.executable, str(script), kind]
    return warm.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def counted(*processes: subprocess.Popen) -> list[dict]:
    """Waits for the processes and returns what each has counted."""
    outputs = [process.communicate(timeout=HUNG_SECONDS)[0] for process in processes]
    lines = [
        [line for line in output.splitlines() if line.startswith("counted: ")] for output in outputs
    ]
    assert all(lines), outputs[0][-3000:]
    return [json.loads(found[0].removeprefix("counted: ")) for found in lines]
