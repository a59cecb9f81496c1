"""Training speed of one and of several workers, each on its own core, and of simulated devices.

    python experiments/benchmarks/scaling.py --output=runs/scaling      # ViT-S/16, batches of 16 per worker
    python experiments/benchmarks/scaling.py --output=runs/scaling --measure=devices

Workers are processes under MultiWorkerMirroredStrategy on this machine. They communicate through
memory, so the measurement shows the overhead of the strategy, not of a network. Each worker has one
core, so n workers have n times the compute of one. All settings are measured alternately. The 1 to
8 simulated JAX devices share all cores and one global batch; ideally their steps take equally long.

Writes `scaling.csv` and `scaling.md` to the folder. docs/scaling.md estimates the overhead of a
network.
"""

import json
import os
import socket
import statistics
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

import native_logs

from absl import app, flags

from keras_vit.writing import table, write_csv, write_text

_OUTPUT = flags.DEFINE_string("output", None, "Folder of the results.", required=True)
_MEASURE = flags.DEFINE_multi_enum(
    "measure", ["workers", "devices"], ["workers", "devices"], "What to measure."
)
_MODEL = flags.DEFINE_string("model", "ViT_S16", "Name of the model in keras_vit.")
_IMAGE_SIZE = flags.DEFINE_integer("image_size", 224, "Side, in pixels.", lower_bound=16)
_BATCH_SIZE = flags.DEFINE_integer(
    "batch_size", 16, "Images per worker, and of all simulated devices together.", lower_bound=1
)
_STEPS = flags.DEFINE_integer(
    "steps", 8, "Steps of a measurement, after two warm-up steps.", lower_bound=1
)
_REPEATS = flags.DEFINE_integer("repeats", 3, "Measurements of each setting.", lower_bound=1)
_WORKERS = flags.DEFINE_list("workers", ["1", "2"], "Numbers of workers.")
_DEVICES = flags.DEFINE_list("devices", ["1", "2", "4", "8"], "Numbers of simulated devices.")
for _numbers in ("workers", "devices"):
    flags.register_validator(
        _numbers,
        lambda texts: all(text.isdecimal() and int(text) for text in texts),
        "must be whole numbers from 1.",
    )

Contestant = tuple[str, int]  # "workers" or "devices", and their number


def main(_argv: list[str]) -> None:
    cores = sorted(os.sched_getaffinity(0))
    contestants: list[Contestant] = []
    if "workers" in _MEASURE.value:
        contestants += [("workers", int(count)) for count in _WORKERS.value]
    if "devices" in _MEASURE.value:
        contestants += [("devices", int(count)) for count in _DEVICES.value]
    most = max((count for kind, count in contestants if kind == "workers"), default=1)
    if most > len(cores):
        raise app.UsageError(
            f"{most} workers need {most} cores. Available: {len(cores)}. Reduce --workers."
        )
    uneven = [
        count for kind, count in contestants if kind == "devices" and _BATCH_SIZE.value % count
    ]
    if uneven:
        raise app.UsageError(
            f"--batch_size must be a multiple of the number of devices, {uneven[0]}. Received: "
            f"{_BATCH_SIZE.value}. Change --batch_size or --devices."
        )
    seconds: dict[Contestant, list[float]] = {contestant: [] for contestant in contestants}
    for turn in range(_REPEATS.value):
        for kind, count in contestants[:: -1 if turn % 2 else 1]:
            step = _time_workers(cores[:count]) if kind == "workers" else _time_devices(count)
            seconds[kind, count].append(step)
            print(f"{count} {kind}: {step:.3f} s per step", flush=True)
    output = Path(_OUTPUT.value)
    output.mkdir(parents=True, exist_ok=True)
    _write_results(output, seconds)
    print(f"\n{(output / 'scaling.md').read_text()}")


def _time_workers(cores: list[int]) -> float:
    """Returns the seconds per step with one worker on each of `cores`."""
    addresses = [f"127.0.0.1:{port}" for port in _find_free_ports(len(cores))]
    processes = []
    for index, core in enumerate(cores):
        config = json.dumps(
            {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": index}}
        )
        alone = {"TF_CONFIG": config} if len(cores) > 1 else {}
        processes.append(_start("multi_worker" if alone else "one", core=core, **alone))
    return _wait_for_slowest(processes)


def _time_devices(count: int) -> float:
    """Returns the seconds per step with `count` simulated devices."""
    flag = f"--xla_force_host_platform_device_count={count}"
    return _wait_for_slowest(
        [_start("mirrored" if count > 1 else "one", KERAS_BACKEND="jax", XLA_FLAGS=flag)]
    )


def _start(kind: str, core: int | None = None, **environment: str) -> subprocess.Popen:
    settings = [
        _MODEL.value,
        _IMAGE_SIZE.value,
        _BATCH_SIZE.value,
        _STEPS.value,
        -1 if core is None else core,
    ]
    command = [
        sys.executable,
        "-m",
        "rivals.scaling_worker",
        kind,
        *map(str, settings),
    ]
    folder = Path(__file__).parent
    return subprocess.Popen(
        command,
        cwd=folder,
        env={**os.environ, **environment},
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def _wait_for_slowest(processes: Sequence[subprocess.Popen]) -> float:
    """Returns the seconds per step of the slowest process. If one fails, the others are killed, as
    they would wait for it forever.
    """
    with ThreadPoolExecutor(len(processes)) as threads:
        try:
            return max(
                done.result()
                for done in as_completed(threads.submit(_read_seconds, each) for each in processes)
            )
        finally:
            for process in processes:
                process.kill()


def _read_seconds(process: subprocess.Popen) -> float:
    found, messages = process.communicate()
    if process.returncode:
        raise RuntimeError(
            f"A worker failed with exit code {process.returncode}:\n{messages[-2000:]}"
        )
    return float(found.split()[-1])


def _find_free_ports(count: int) -> list[int]:
    servers = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [server.getsockname()[1] for server in servers]
    for server in servers:
        server.close()
    return ports


def _write_results(output: Path, seconds: dict[Contestant, list[float]]) -> None:
    rows = []
    for (kind, count), values in seconds.items():
        step, first = (
            statistics.median(values),
            statistics.median(seconds[kind, _find_first(kind, seconds)]),
        )
        images = _BATCH_SIZE.value * (count if kind == "workers" else 1)
        speed = first / step * (count / _find_first(kind, seconds) if kind == "workers" else 1)
        rows.append(
            [
                kind,
                count,
                f"{step:.3f}",
                f"{max(values) - min(values):.3f}",
                f"{images / step:.2f}",
                f"{speed:.2f}",
            ]
        )
    head = [
        "what",
        "number",
        "seconds a step",
        "largest less smallest",
        "images/s",
        "rate over the first's",
    ]
    write_text(output / "scaling.md", table(head, rows) + "\n")
    write_csv(output / "scaling.csv", head, rows)


def _find_first(kind: str, seconds: dict[Contestant, list[float]]) -> int:
    """Returns the first number of workers or devices, which speeds are relative to."""
    return next(count for other, count in seconds if other == kind)


if __name__ == "__main__":
    app.run(main)
