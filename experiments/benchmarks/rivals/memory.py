"""Peak memory of this process or of its accelerator, and available memory."""

import re
import sys
from pathlib import Path


def peak_megabytes() -> float:
    """Returns the peak memory: on an accelerator, of its allocations; on a CPU, of this process,
    framework included, on Linux only.
    """
    if "torch" in sys.modules and sys.modules["torch"].cuda.is_available():
        return sys.modules["torch"].cuda.max_memory_allocated() / 1e6
    if "jax" in sys.modules and sys.modules["jax"].default_backend() != "cpu":
        return sys.modules["jax"].local_devices()[0].memory_stats()["peak_bytes_in_use"] / 1e6
    return _read_status("VmHWM")


def available_megabytes() -> float:
    """Returns the memory that is available to further processes."""
    return (
        int(re.search(r"MemAvailable:\s*(\d+) kB", Path("/proc/meminfo").read_text())[1])
        * 1024
        / 1e6
    )


def _read_status(name: str) -> float:
    """Reads a field of /proc/self/status, in MB. `getrusage` would include the memory of the parent
    process, which a child is a copy of before it starts its program.
    """
    return (
        int(re.search(rf"{name}:\s*(\d+) kB", Path("/proc/self/status").read_text())[1])
        * 1024
        / 1e6
    )
