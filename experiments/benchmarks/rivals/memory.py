"""The most memory that was in use, of this process or of its accelerator."""

import re
import sys
from pathlib import Path


def peak_megabytes() -> float:
    """On an accelerator what was allocated there; else what this process held, the framework
    included; Linux only.
    """
    if "torch" in sys.modules and sys.modules["torch"].cuda.is_available():
        return sys.modules["torch"].cuda.max_memory_allocated() / 1e6
    if "jax" in sys.modules and sys.modules["jax"].default_backend() != "cpu":
        return sys.modules["jax"].local_devices()[0].memory_stats()["peak_bytes_in_use"] / 1e6
    return _status("VmHWM")


def available_megabytes() -> float:
    """What other processes could still take."""
    return (
        int(re.search(r"MemAvailable:\s*(\d+) kB", Path("/proc/meminfo").read_text())[1])
        * 1024
        / 1e6
    )


def _status(name: str) -> float:
    """Not `getrusage`, which counts what the process was before: a copy of its parent."""
    return (
        int(re.search(rf"{name}:\s*(\d+) kB", Path("/proc/self/status").read_text())[1])
        * 1024
        / 1e6
    )
