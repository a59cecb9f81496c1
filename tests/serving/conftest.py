"""An exported model, photographs, and servers that stand in for TensorFlow Serving: processes that
can be killed.
"""

import csv
import dataclasses
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import keras
import numpy as np
import pytest
import warm
from free_ports import free_ports
from warm import HUNG_SECONDS

import keras_vit
from keras_vit.variants import VIT_VARIANTS

ROOT = Path(__file__).parents[2]
MODEL = "tiny"
Row = Mapping[str, str]


class Server:
    """A stand-in on two ports of its own."""

    def __init__(self, config_file: Path):
        self.config_file = config_file
        self.grpc_port, self.rest_port = free_ports(2)
        self.process: subprocess.Popen | None = None

    def start(self) -> None:
        """Starts it and waits until it listens."""
        options = [f"--model_config_file={self.config_file}", f"--port={self.grpc_port}"]
        script = Path(__file__).with_name("stand_in.py")
        command = [sys.executable, str(script), *options, f"--rest_api_port={self.rest_port}"]
        self.process = warm.Popen(command, stderr=subprocess.DEVNULL)
        deadline = time.monotonic() + HUNG_SECONDS
        while not self._is_up():
            assert self.process.poll() is None, "the stand-in ended"
            assert time.monotonic() < deadline, "the stand-in did not come up"
            time.sleep(0.1)

    def kill(self) -> None:
        """Ends it as a crash or a power cut would."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    def address(self, transport: str) -> str:
        """What `--server` is given."""
        return (
            f"127.0.0.1:{self.grpc_port}"
            if transport == "grpc"
            else f"http://127.0.0.1:{self.rest_port}"
        )

    def get(self, path: str) -> bytes:
        """The answer to a GET request."""
        with urllib.request.urlopen(
            f"http://127.0.0.1:{self.rest_port}{path}", timeout=HUNG_SECONDS
        ) as response:
            return response.read()

    def _is_up(self) -> bool:
        try:
            return bool(self.get("/stand_in/statistics"))
        except (urllib.error.URLError, ConnectionError):
            return False


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All versions of a tiny ViT as `keras_vit.export` writes them, with a head that is not all
    zeros.
    """
    from keras_vit.export import (
        saved_model,  # on other backends than TensorFlow, this folder is skipped
    )

    changes = {
        "name": "ViT_Tiny",
        "patch_size": 8,
        "width": 16,
        "depth": 2,
        "num_heads": 2,
        "mlp_dim": 32,
    }
    row = dataclasses.replace(VIT_VARIANTS["ViT_Ti16"], **changes, source="test")
    options = {"input_shape": (32, 32, 3), "classes": 7, "classifier_activation": None}
    model = keras_vit.application(row)(weights=None, **options)
    head, draws = model.get_layer("predictions"), np.random.default_rng(0)
    head.set_weights([draws.normal(size=weight.shape) for weight in head.get_weights()])
    folder = tmp_path_factory.mktemp("models") / MODEL
    saved_model(model, folder, class_names=[f"kind {number}" for number in range(7)])
    keras.utils.clear_session(free_memory=True)
    return folder


@pytest.fixture(scope="session")
def config_file(model_folder: Path) -> Path:
    """A `models.config` with that model, which has a label too, and with one that takes no
    files.
    """
    import tensorflow as tf

    path, numbers = model_folder.parent / "models.config", model_folder.with_name("numbers")
    doubler = tf.Module()
    doubler.double = tf.function(
        lambda x: {"doubled": 2 * x}, input_signature=[tf.TensorSpec([None], name="x")]
    )
    tf.saved_model.save(doubler, str(numbers / "1"), signatures={"predict": doubler.double})
    stable = 'version_labels { key: "stable" value: 1 }'
    models = [f'config {{ name: "{MODEL}" base_path: "{model_folder}" {stable} }}']
    models.append(f'config {{ name: "numbers" base_path: "{numbers}" }}')
    path.write_text(f"model_config_list {{ {' '.join(models)} }}")
    return path


def _running(config_file: Path) -> Iterator[Server]:
    server = Server(config_file)
    server.start()
    yield server
    server.kill()


@pytest.fixture
def own_server(config_file: Path) -> Iterator[Server]:
    """A server that the test may kill."""
    yield from _running(config_file)


@pytest.fixture(scope="module")
def server(config_file: Path) -> Iterator[Server]:
    """A server for a whole module."""
    yield from _running(config_file)


@pytest.fixture(scope="session")
def direct(model_folder: Path) -> Callable[[bytes], dict[str, np.ndarray]]:
    """The exported model, called without any server between."""
    import tensorflow as tf

    loaded = tf.saved_model.load(str(model_folder / "1"))
    asked = loaded.signatures["serving_default"]

    def answer(file: bytes) -> dict[str, np.ndarray]:
        assert loaded is not None  # a signature does not keep alive what it was loaded with
        return {
            name: value.numpy()[0] for name, value in asked(image_bytes=tf.constant([file])).items()
        }

    return answer


@pytest.fixture
def start_client() -> Iterator[Callable[..., subprocess.Popen]]:
    """Starts the client as a user does; what is left of it ends with the test, so that the next one
    is not blamed.
    """
    started: list[subprocess.Popen] = []

    def start(
        images: Path, address: str, *options: str, warnings: str = "error"
    ) -> subprocess.Popen:
        script = str(ROOT / "experiments" / "serving" / "client.py")
        command = [
            sys.executable,
            script,
            f"--images={images}",
            f"--server={address}",
            f"--model={MODEL}",
        ]
        command += ["--deadline_s=60", *options]  # the machine may be busy with other things
        streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        environment = {**os.environ, "PYTHONWARNINGS": warnings}
        # Whoever starts the tests in the background of a shell has them ignore SIGINT, and their
        # children with them. Not with `preexec_fn`: where another test has used JAX, that makes it
        # warn of a fork.
        before = signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            started.append(subprocess.Popen(command, env=environment, **streams))
        finally:
            signal.signal(signal.SIGINT, before)
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.communicate()


@pytest.fixture
def client(
    start_client: Callable[..., subprocess.Popen],
) -> Callable[..., subprocess.CompletedProcess]:
    """Runs the client to its end."""

    def run(images: Path, address: str, *options: str) -> subprocess.CompletedProcess:
        process = start_client(images, address, *options)
        out, err = process.communicate(timeout=HUNG_SECONDS)
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)

    return run


@pytest.fixture
def rows() -> Callable[[Path], list[Row]]:
    """Reads the answers that the client wrote."""

    def read(path: Path) -> list[Row]:
        with open(path, encoding="utf-8", newline="") as file:
            return list(csv.DictReader(file))

    return read
