"""Commands in processes of their own that are traced, and interrupted at an operation on a file;
and what they leave.

An operation is whatever Python does to a file below the root of the command that changes something
(open to write, mkdir, rename, remove, truncate, chmod), and each start of a process. What
TensorFlow does by itself (event files, SavedModels, the code that AutoGraph generates) is between
two operations.

    started(base, "pretrain").wait()                     the process and its operations
    started(base, "pretrain", kill=7).wait()             SIGKILL just before operation 7
    started(base, "pretrain", kill=7, bytes=100)         killed as soon as a file grows beyond 100 bytes after it
    started(base, "pretrain", full=7, pages=1)           from operation 7 on the disk has room for one page
"""

import ctypes
import hashlib
import json
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import small_commands  # also the path of the tests
import warm

CHANGES = (
    "os.mkdir",
    "os.rename",
    "os.remove",
    "os.rmdir",
    "os.truncate",
    "os.chmod",
    "os.link",
    "os.symlink",
)
PAGE = 4096
ROOM = 64 * 2**20  # bytes that no small command needs
_TIMES = ("seconds", "memory_gb", "process", "images_per_second", "created", "date_saved")
_TIMED_METRICS = ("train/images_per_second", "train/input_bound", "train/memory_gb")


# ---- for campaigns


@dataclass
class Started:
    """A command that runs.

    Attributes:
        root: Its folder, with `out` and `tmp`.
        process: It.
        log: Its operations, a line for each, outside of its root.
    """

    root: Path
    process: Any
    log: Path
    code: int | None = field(init=False, default=None)
    output: str = field(init=False, default="")

    def wait(self) -> "Started":
        """Waits for its end. Then there are `code` and `output`."""
        self.output, _ = self.process.communicate()
        self.code = self.process.returncode
        return self

    def operations(self) -> list[str]:
        return self.log.read_text(errors="backslashreplace").splitlines()


def prepare(base: Path) -> None:
    """Makes a folder for commands: their inputs, and a server that forks them."""
    if warm.FOLDER not in os.environ:
        servers = base / str(os.getpid())
        servers.mkdir()
        os.environ[warm.FOLDER] = str(servers)
    os.environ |= {
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "KERAS_BACKEND": "tensorflow",
        "MPLBACKEND": "agg",
        "CI": "true",
    }
    (base / "inputs").mkdir()
    line = [sys.executable, small_commands.__file__, "inputs", str(base / "inputs")]
    done = warm.run(line, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(done.stderr)


def empty(root: Path) -> Path:
    """Empties the folder of a command, or creates it; it may be a mount point."""
    root.mkdir(exist_ok=True)
    for path in root.iterdir():
        shutil.rmtree(path)
    (root / "tmp").mkdir()
    return root


def started(base: Path, command: str, root: Path | None = None, **plan: int) -> Started:
    """Starts a command in `base/root`, or in a folder that is given."""
    root, log = root or base / "root", base / f"operations_{time.monotonic_ns()}"
    log.touch()
    line = [
        sys.executable,
        __file__,
        command,
        str(base / "inputs"),
        str(root),
        str(log),
        json.dumps(plan),
    ]
    process = warm.Popen(
        line, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
    )
    return Started(root, process, log)


# ---- what is left


def contents(root: Path) -> dict[str, str]:
    """Returns a digest for each file and empty folder, by its name, without what tells of times and
    processes.

    Of the versions of an export there is the newest alone.
    """
    found = {}
    for path in sorted(root.rglob("*")):
        name = path.relative_to(root).as_posix()
        if path.is_file() and not (_is_tensorflows(name) or _is_old_version(root, name)):
            found[_plain(name)] = _digest(path)
        elif path.is_dir() and not (
            any(path.iterdir()) or _is_kerass(name) or _is_old_version(root, name)
        ):
            found[f"{_plain(name)}/"] = ""
    return found


def problems(root: Path) -> list[str]:
    """Returns the files that have their final name and are not complete."""
    found = []
    for path in sorted(root.rglob("*")):
        names = path.relative_to(root).parts
        if (
            path.is_file()
            and not any(name.startswith((".", "keras_vit_")) for name in names)
            and names[0] != "tmp"
        ):
            try:
                _check(path)
            except Exception as error:
                found.append(f"not whole: {'/'.join(names)}: {type(error).__name__} {error}"[:300])
    return found + [
        f"not whole: {path.name}: {damage}" for path in _versions(root) for damage in _damage(path)
    ]


def _versions(root: Path) -> list[Path]:
    folders = [path for path in root.glob("models/**/*") if path.is_dir() and path.name.isdigit()]
    return [
        path
        for path in folders
        if not any(name.startswith(".") for name in path.relative_to(root).parts)
    ]


def _is_old_version(root: Path, name: str) -> bool:
    found = re.match(r"(models/(?:\w+/)?)(\d+)/", name)
    return bool(found) and any(
        int(path.name) > int(found[2]) for path in (root / found[1]).glob("[0-9]*")
    )


def _plain(name: str) -> str:
    name = re.sub(r"events\.out\.tfevents\.[^/]*", "events.out.tfevents", name)
    return re.sub(r"(models/(?:\w+/)?)\d+/", r"\1version/", name)


def _digest(path: Path) -> str:
    data = path.read_bytes()
    try:
        if path.suffix == ".json":
            data = json.dumps(_without_times(json.loads(data)), sort_keys=True).encode()
        if path.suffix in (".npz", ".keras"):
            with zipfile.ZipFile(path) as archive:
                data = b"".join(
                    name.encode() + archive.read(name) for name in sorted(archive.namelist())
                )
    except (ValueError, zipfile.BadZipFile):
        pass  # it differs from what is whole
    if path.name == "metrics.csv":
        lines = data.decode().splitlines(keepends=True)
        data = "".join(line for line in lines if line.split(",")[1] not in _TIMED_METRICS).encode()
    return hashlib.sha256(data).hexdigest()[:16]


def _without_times(content: Any) -> Any:
    if isinstance(content, Mapping):
        return {
            name: _without_times(value) for name, value in content.items() if name not in _TIMES
        }
    return [_without_times(value) for value in content] if isinstance(content, list) else content


def _check(path: Path) -> None:
    """Raises an error if a file is not whole, as far as its kind tells."""
    if path.suffix == ".json" and (path.parent.name.isdigit() or path.name != "trial.json"):
        json.loads(path.read_text())
    elif path.suffix in (".npz", ".keras"):
        with zipfile.ZipFile(path) as archive:
            if broken := archive.testzip():
                raise ValueError(broken)
    elif path.suffix == ".npy" and path.with_name("features.json").exists():
        import numpy as np

        rows = json.loads(path.with_name("features.json").read_text())["rows"]
        if len(np.load(path)) != rows:
            raise ValueError(f"not {rows} rows")
    elif path.suffix == ".png":
        from PIL import Image

        with Image.open(path) as image:
            image.load()
    elif path.suffix == ".safetensors":
        data = path.read_bytes()
        header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
        ends = [
            entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"
        ]
        if 8 + int.from_bytes(data[:8], "little") + max(ends) != len(data):
            raise ValueError("its end is missing")
    elif path.suffix in (".md", ".csv", ".txt") and path.name != "metrics.csv":
        if not path.read_bytes().endswith(b"\n") and path.name != "log.txt":
            raise ValueError("its last line is not finished")


def _damage(version: Path) -> list[str]:
    """What differs from the checksums of a version."""
    lists = [*version.rglob("SHA256SUMS")]
    lines = [line for file in lists for line in file.read_text().splitlines()]
    found = [] if lines else ["there are no checksums"]
    for line in lines:
        digest, _, name = line.partition("  ")
        path = version / name
        if not path.is_file() or hashlib.sha256(path.read_bytes()).hexdigest() != digest:
            found.append(f"{name} is gone or changed")
    return found


# ---- disks of a size


def mount(root: Path) -> None:
    """Mounts a tmpfs on a folder.

    Raises:
        OSError: If the system does not let us.
    """
    root.mkdir(exist_ok=True)
    _mount(root, 0, ROOM)


def unmount(root: Path) -> None:
    """Takes such a disk away, with all that is on it."""
    # MNT_DETACH: a process may still have a file open
    ctypes.CDLL(None).umount2(os.fsencode(root), 2)


def resize(root: Path, size: int) -> None:
    """Changes the size of such a disk, in bytes; what is on it stays."""
    _mount(root, 32, size)  # MS_REMOUNT


def used(root: Path) -> int:
    facts = os.statvfs(root)
    return (facts.f_blocks - facts.f_bfree) * facts.f_frsize


def _mount(root: Path, flags: int, size: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(b"tmpfs", os.fsencode(root), b"tmpfs", flags, f"size={size}".encode()):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), str(root))


# ---- the process


def changed_path(event: str, arguments: tuple) -> str | None:
    """Returns what an audit event changes: a path, or "" for the start of a process; None if it
    changes nothing.
    """
    if event == "subprocess.Popen":
        return ""
    if event == "open":
        path, mode, flags = arguments
        writing = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
        if not (any(letter in (mode or "") for letter in "wxa+") or (flags or 0) & writing):
            return None
        return _absolute(path, -1)
    if event not in CHANGES:
        return None
    folders = [
        each
        for each in arguments[1:]
        if isinstance(each, int) and event in ("os.remove", "os.rmdir")
    ]
    return _absolute(arguments[0], folders[0] if folders else -1)


def _absolute(path: Any, folder: int) -> str:
    if isinstance(path, int):
        return os.readlink(f"/proc/self/fd/{path}") if path > 2 else ""
    path = os.fsdecode(path)
    return (
        os.path.join(os.readlink(f"/proc/self/fd/{folder}"), path)
        if folder >= 0
        else os.path.abspath(path)
    )


def _hook(root: Path, log: int, plan: Mapping[str, int]) -> Any:
    owner, count, inside = os.getpid(), 0, False

    def hook(event: str, arguments: tuple) -> None:
        nonlocal count, inside
        if (
            inside
            or os.getpid() != owner
            or (event != "open" and event not in (*CHANGES, "subprocess.Popen"))
        ):
            return
        inside = True
        try:
            path = changed_path(event, arguments)
            if path is None or (path and not path.startswith(f"{root}/")) or _is_tensorflows(path):
                return
            if count == plan.get("kill"):
                _kill(plan.get("bytes"))
            if count == plan.get("full"):
                resize(root, used(root) + PAGE * max(plan["pages"], int(not used(root))))
            count += 1
            os.write(
                log, f"{event} {path.removeprefix(str(root))}\n".encode(errors="backslashreplace")
            )
        finally:
            inside = False

    return hook


def _is_tensorflows(path: str) -> bool:
    """Whether it is code that AutoGraph has generated, which a kill leaves in the folder for
    temporary files.
    """
    return os.path.basename(path) == "tmp" or os.path.basename(path).startswith(
        "__autograph_generated_file"
    )


def _is_kerass(name: str) -> bool:
    """Whether it is the folder for temporary files, or one that Keras makes there when it saves: it
    is empty.
    """
    return re.fullmatch(r"tmp(/tmp\w{8}(/assets)?)?", name) is not None


def _kill(grow: int | None) -> None:
    if grow is None:
        os.kill(os.getpid(), signal.SIGKILL)
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_FSIZE, (grow, resource.RLIM_INFINITY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _become(
    command: str, inputs: Path, root: Path, log: Path, plan: Mapping[str, int]
) -> int | None:
    import tempfile

    os.environ["TMPDIR"] = tempfile.tempdir = str(root / "tmp")
    os.chdir(inputs)
    written = os.open(log, os.O_WRONLY | os.O_APPEND)
    while time.monotonic_ns() < plan.get("start", 0):
        time.sleep(0.001)
    sys.addaudithook(_hook(root, written, plan))
    return small_commands.COMMANDS[command](
        inputs, root / ("models" if command == "saved_model" else "out")
    )


if __name__ == "__main__":
    name, inputs, root, log, plan = sys.argv[1:]
    sys.exit(_become(name, Path(inputs), Path(root), Path(log), json.loads(plan)))
