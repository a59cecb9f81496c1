"""Python processes that start in milliseconds: `run` and `Popen` of `subprocess`, for commands of
this interpreter.

A server imports TensorFlow, Keras and the package once and is forked for each command, so that a
test of a script does not wait seconds for imports that it does not test. What a forked process does
is all its own: arguments, environment, folder, streams, signals, exit code. Three things are the
server's: the imported modules, the seed of Python's hashes, and the command line in the table of
processes. Tests of these three use `subprocess`. On a system that cannot fork and wait for a
process through a descriptor (Linux can), every command runs as a new process.

What a forked process starts of this interpreter is forked too (`Child`), unless its environment
says `REAL_CHILDREN`.
"""

import atexit
import contextlib
import fcntl
import gc
import importlib
import io
import json
import os
import random
import runpy
import selectors
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

FOLDER = (
    "KERAS_VIT_TESTS_WARM"  # the environment variable that names the folder of the servers' sockets
)
# Where it is set, graphs run as they were traced: by `--unoptimized` in the tests and in the
# processes that they start, so that both give the same bits; by a test in its processes alone.
UNOPTIMIZED = "KERAS_VIT_TESTS_UNOPTIMIZED"
REAL_CHILDREN = "KERAS_VIT_TESTS_REAL_CHILDREN"
# JAX compiles each small program for itself. Without optimization a script takes half of the time.
_XLA_UNOPTIMIZED = "--xla_backend_optimization_level=0 --xla_cpu_use_fusion_emitters=false"
CAN_FORK = hasattr(os, "fork") and hasattr(os, "pidfd_open")
# No test fails because the machine is busy: a process that takes longer hangs. Several that do
# leave a run of all tests the time to name them.
HUNG_SECONDS = 900.0
_RealPopen = subprocess.Popen  # `Child` may take its place
_LENGTH = struct.Struct("!Q")
_STATUS = struct.Struct("!q")
_ENDED = struct.Struct("!qd")  # the exit code, and processor seconds
# of processes that were started here and have ended; they are the server's children, not ours
cpu_seconds = 0.0


# ---- for tests


def run(
    command: Sequence[str],
    *,
    capture_output: bool = False,
    timeout: float | None = None,
    **options: Any,
) -> subprocess.CompletedProcess:
    """`subprocess.run` without `input` and `check`."""
    if capture_output:
        options |= {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    process = Popen(command, **options)
    try:
        output, errors = process.communicate(timeout=timeout)
    except BaseException:
        process.kill()
        process.communicate()
        raise
    return subprocess.CompletedProcess(list(command), process.returncode, output, errors)


def Popen(command: Sequence[str], **options: Any) -> "subprocess.Popen | ForkedProcess":  # noqa: N802, as in subprocess
    """Starts `[sys.executable, "script.py" | "-I", "script.py" | "-m", "module" | "-c", "code",
    *arguments]`.

    Options are those of `subprocess.Popen`: `stdout`, `stderr`, `text`, `errors`, `env`, `cwd` and
    `start_new_session`. There is nothing to read from its standard input.
    """
    if not CAN_FORK or FOLDER not in os.environ:
        return _RealPopen(list(command), **options)
    return ForkedProcess(list(map(str, command)), **options)


class ForkedProcess:
    """What tests use of `subprocess.Popen`."""

    def __init__(
        self,
        command: list[str],
        *,
        stdout: int | IO | None = None,
        stderr: int | IO | None = None,
        text: bool = False,
        errors: str | None = None,
        env: dict[str, str] | None = None,
        cwd: str | os.PathLike | None = None,
        start_new_session: bool = False,
    ):
        if not _is_known(command):
            raise ValueError(
                f"Not a command that the warm server can run: {command[:2]}. Use `subprocess`."
            )
        environment = dict(os.environ if env is None else env)
        read_at_start = _read_at_start(environment)
        if read_at_start:
            raise ValueError(f"Python reads {read_at_start} when it starts. Use `subprocess`.")
        self.args, self.returncode = command, None
        with contextlib.ExitStack() as ours:
            self.stdout, out = _stream(stdout, 1, text, errors, ours)
            if stderr == subprocess.STDOUT:
                self.stderr, err = None, out
            else:
                self.stderr, err = _stream(stderr, 2, text, errors, ours)
            request = {
                "argv": command[1:],
                "env": environment,
                "cwd": os.fspath(cwd or os.getcwd()),
                "new_session": start_new_session,
            }
            self._connection = _connect(environment.get("KERAS_BACKEND", "tensorflow"))
            payload = json.dumps(request).encode()
            socket.send_fds(self._connection, [_LENGTH.pack(len(payload))], [out, err])
            self._connection.sendall(payload)
        (self.pid,) = _STATUS.unpack(_receive(self._connection, _STATUS.size))

    def poll(self) -> int | None:
        return self._wait(0)

    def wait(self, timeout: float | None = None) -> int:
        if self._wait(timeout) is None:
            raise subprocess.TimeoutExpired(self.args, timeout or 0)
        return self.returncode

    def communicate(
        self, input: None = None, timeout: float | None = None
    ) -> tuple[Any, Any]:  # as `subprocess.run` calls it
        deadline = None if timeout is None else time.monotonic() + timeout
        streams = [
            stream
            for stream in (self.stdout, self.stderr)
            if stream is not None and not stream.closed
        ]
        chunks: dict[IO, list[bytes]] = {stream: [] for stream in streams}
        with selectors.DefaultSelector() as selector:
            for stream in streams:
                selector.register(stream, selectors.EVENT_READ)
            while selector.get_map():
                left = None if deadline is None else deadline - time.monotonic()
                if left is not None and left < 0:
                    raise subprocess.TimeoutExpired(self.args, timeout)
                for key, _ in selector.select(left):
                    chunk = os.read(key.fd, 1 << 16)
                    chunks[key.fileobj].append(chunk)
                    if not chunk:
                        selector.unregister(key.fileobj)
        self.wait(None if deadline is None else max(deadline - time.monotonic(), 0))
        return tuple(self._whole(stream, chunks) for stream in (self.stdout, self.stderr))

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def _wait(self, seconds: float | None) -> int | None:
        global cpu_seconds
        if self.returncode is None:
            with selectors.DefaultSelector() as selector:
                selector.register(self._connection, selectors.EVENT_READ)
                if selector.select(seconds):
                    self.returncode, used = _ENDED.unpack(_receive(self._connection, _ENDED.size))
                    cpu_seconds += used
                    self._connection.close()
        return self.returncode

    def _whole(self, stream: IO | None, chunks: dict[IO, list[bytes]]) -> Any:
        if stream is None:
            return None
        data = b"".join(chunks.get(stream, []))
        stream.close()
        if isinstance(stream, io.TextIOWrapper):
            return data.decode(stream.encoding, stream.errors or "strict").replace("\r\n", "\n")
        return data

    def __enter__(self) -> "ForkedProcess":
        return self

    def __exit__(self, *_: object) -> None:
        for stream in (self.stdout, self.stderr):
            if stream is not None:
                stream.close()
        self.wait()


class Child(subprocess.Popen):
    """`subprocess.Popen` in a forked process: forks what it can fork, and starts the rest."""

    def __new__(cls, args: Any, *positional: Any, **options: Any) -> Any:
        known = {"stdout", "stderr", "text", "errors", "env", "cwd", "start_new_session", "stdin"}
        command = args if isinstance(args, list) else []
        if (
            not CAN_FORK
            or FOLDER not in os.environ
            or positional
            or not {name for name, value in options.items() if value is not None} <= known
            or options.get("stdin") not in (None, subprocess.DEVNULL)
            or not _is_known(command)
            or _read_at_start(options.get("env") or os.environ)
        ):
            return _RealPopen(args, *positional, **options)
        sys.audit("subprocess.Popen", command[0], command, options.get("cwd"), options.get("env"))
        options.pop("stdin", None)
        return ForkedProcess(list(map(str, command)), **options)


def _is_known(command: Sequence[str]) -> bool:
    """Whether the server can run it."""
    if len(command) < 2 or command[0] != sys.executable:
        return False
    first, *others = map(str, command[1:])
    return first in ("-c", "-m") or not (
        others[0] if first == "-I" and others else first
    ).startswith("-")


def _read_at_start(environment: Mapping[str, str]) -> list[str]:
    """Variables that Python reads when it starts and that differ from those of this process."""
    return [
        name
        for name in ("PYTHONPATH", "PYTHONWARNINGS")
        if environment.get(name) != os.environ.get(name)
    ]


def _stream(
    wanted: int | IO | None,
    default: int,
    text: bool,
    errors: str | None,
    ours: contextlib.ExitStack,
) -> tuple[IO | None, int]:
    """Our end, and the descriptor that the process writes to."""
    if wanted is None:
        return None, default
    if wanted == subprocess.PIPE:
        read, write = os.pipe()
        ours.callback(os.close, write)
        return (open(read, encoding="utf-8", errors=errors) if text else open(read, "rb")), write
    if wanted == subprocess.DEVNULL:
        null = os.open(os.devnull, os.O_WRONLY)
        ours.callback(os.close, null)
        return None, null
    return None, wanted if isinstance(wanted, int) else wanted.fileno()


def _receive(connection: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        part = connection.recv(count - len(data))
        if not part:
            raise RuntimeError("The server of warm processes has ended.")
        data += part
    return data


def _connect(backend: str) -> socket.socket:
    """A connection to the server of this backend, which the first caller starts."""
    path = Path(os.environ[FOLDER]) / backend
    with open(path.with_suffix(".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        while True:
            if not path.exists():
                _start_server(path, backend)
            connection = socket.socket(socket.AF_UNIX)
            try:
                with _address(path) as address:
                    connection.connect(address)
                return connection
            except ConnectionRefusedError:  # the server was killed
                connection.close()
                path.unlink(missing_ok=True)


@contextlib.contextmanager
def _address(path: Path) -> Iterator[str]:
    """Yields a short name of a socket: the path of an AF_UNIX socket has at most 107 bytes, and that of
    its folder may be longer.
    """
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)


def _start_server(path: Path, backend: str) -> None:
    environment = {**os.environ, "KERAS_BACKEND": backend, "TF_CPP_MIN_LOG_LEVEL": "3"}
    with open(path.with_suffix(".log"), "wb") as log:
        command = [sys.executable, os.path.abspath(__file__), os.fspath(path)]
        server = _RealPopen(
            command, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log
        )
    # it outlives whoever started it: nothing is to be waited for, or warned of
    server.returncode = 0
    deadline = time.monotonic() + HUNG_SECONDS
    while not path.exists():
        if time.monotonic() > deadline or os.waitpid(server.pid, os.WNOHANG)[0]:
            raise RuntimeError(
                f"No server of warm processes: {path.with_suffix('.log').read_text()[-2000:]}"
            )
        time.sleep(0.02)


# ---- the server


def choose_optimization() -> None:
    """Switches the optimization of TensorFlow's graphs and of JAX's programs off, if the environment
    says so. JAX reads its flags when it is first used.
    """
    import tensorflow as tf

    if UNOPTIMIZED in os.environ:
        tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
        if os.environ.get("KERAS_BACKEND") == "jax":
            os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {_XLA_UNOPTIMIZED}"


# What commands and scripts import, so that a fork has it.
_IMPORTED = (
    *(
        "matplotlib.backends.backend_agg",
        "PIL.Image",
        "scipy.linalg",
        "sklearn.datasets",
        "sklearn.linear_model",
    ),
    *(
        "tensorflow",
        "keras_vit.export.acceptance",
        "keras_vit.cli",
        "keras_vit.analyze.inspection",
        "keras_vit.quickstart",
    ),
    *("keras_vit.train", "keras_vit.verify"),
)


def _serve(path: Path) -> Callable[[], None] | None:
    """Forks for each request. Returns in the forks alone, with what such a process is to do."""
    owner = Path("/proc", path.parent.name)
    with socket.socket(socket.AF_UNIX) as listener, selectors.PollSelector() as selector:
        partial = path.with_suffix(".starting")
        with _address(partial) as address:
            listener.bind(address)
        listener.listen(64)
        partial.rename(path)
        selector.register(listener, selectors.EVENT_READ)
        while owner.exists() and path.exists():
            for key, _ in selector.select(2.0):
                if key.data:
                    descriptor, connection = key.data
                    before = os.times()
                    status = os.waitid(os.P_PIDFD, descriptor, os.WEXITED)
                    now = os.times()
                    used = (
                        now.children_user
                        + now.children_system
                        - before.children_user
                        - before.children_system
                    )
                    selector.unregister(descriptor)
                    os.close(descriptor)
                    with contextlib.suppress(OSError), connection:  # whoever asked may have ended
                        code = (
                            status.si_status
                            if status.si_code == os.CLD_EXITED
                            else -status.si_status
                        )
                        connection.sendall(_ENDED.pack(code, used))
                    continue
                connection, _ = listener.accept()
                try:
                    head, streams, _, _ = socket.recv_fds(connection, _LENGTH.size, 2)
                    request = json.loads(_receive(connection, *_LENGTH.unpack(head)))
                except (RuntimeError, OSError, struct.error):  # the asking process was killed
                    connection.close()
                    continue
                # JAX warns of threads, which it starts when it is first used
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    pid = os.fork()
                if not pid:
                    connection.close()
                    for process, waiting in (
                        key.data for key in selector.get_map().values() if key.data
                    ):
                        os.close(process), waiting.close()
                    return lambda: _become(request, *streams)
                for stream in streams:
                    os.close(stream)
                with contextlib.suppress(OSError):  # the asking process was killed
                    connection.sendall(_STATUS.pack(pid))
                descriptor = os.pidfd_open(pid)
                selector.register(descriptor, selectors.EVENT_READ, (descriptor, connection))
    return None


def _become(request: dict[str, Any], out: int, err: int) -> None:
    """Turns a fork of the server into the process that was asked for, and runs it."""
    import numpy as np

    os.environ.clear()
    os.environ.update(request["env"])
    os.chdir(request["cwd"])
    os.dup2(out, 1), os.dup2(err, 2)
    for descriptor in {out, err}:
        os.close(descriptor)
    # those of the server are of its log, a file
    sys.stdout = open(1, "w", encoding="utf-8", closefd=False)
    sys.stderr = open(
        2, "w", encoding="utf-8", errors="backslashreplace", closefd=False, buffering=1
    )
    if request["new_session"]:
        os.setsid()
    if REAL_CHILDREN not in os.environ:
        subprocess.Popen = Child
    choose_optimization()
    # ignored where the tests run in the background
    signal.signal(signal.SIGINT, signal.default_int_handler)
    random.seed(), np.random.seed()
    kind, *arguments = request["argv"]
    isolated = kind == "-I"
    if isolated:
        kind, *arguments = arguments
    sys.orig_argv = [sys.executable, kind, *arguments]
    if kind == "-c":
        code, sys.argv, sys.path[0] = arguments[0], ["-c", *arguments[1:]], ""
        exec(compile(code, "<string>", "exec"), {"__name__": "__main__"})
    elif kind == "-m":
        sys.argv, sys.path[0] = arguments, request["cwd"]
        runpy.run_module(arguments[0], run_name="__main__", alter_sys=True)
    else:
        sys.argv = [kind, *arguments]
        sys.path[:1] = [] if isolated else [os.path.dirname(os.path.abspath(kind))]
        runpy.run_path(kind, run_name="__main__")


def _end(error: BaseException | None) -> None:
    """Ends as Python does, but for taking apart a thousand modules, which takes a second."""
    code = error.code if isinstance(error, SystemExit) else int(error is not None)
    if not isinstance(code, int | None):
        print(code, file=sys.stderr)
        code = 1
    if not isinstance(error, SystemExit | None):
        sys.excepthook(type(error), error, error.__traceback__)
    threading._shutdown()
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError):  # whoever read it has ended
            stream.flush()
    if isinstance(error, KeyboardInterrupt):
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    os._exit(code or 0)


if __name__ == "__main__":
    os.environ.setdefault("MPLBACKEND", "agg")
    sys.path.pop(0)  # the folder of the tests
    sys.path.insert(0, "")
    for name in _IMPORTED:
        importlib.import_module(name)
    choose_optimization()
    gc.freeze()  # else the first collection of each fork copies the memory of all that is imported
    process = _serve(Path(sys.argv[1]))
    if process:
        try:
            process()
        except BaseException as raised:
            _end(raised)
        _end(None)
