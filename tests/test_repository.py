"""What holds the repository together: documents that name what exists, tests that stay at home."""

import importlib.metadata
import socket
import subprocess
from pathlib import Path

import keras
import pytest

import keras_vit

ROOT = Path(__file__).parents[1]


def test_the_installed_version_is_the_one_in_the_package():
    assert importlib.metadata.version("keras-vit") == keras_vit.__version__


def test_the_changelog_describes_the_version():
    assert f"## [{keras_vit.__version__}]" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


def test_contributing_names_every_module():
    tree = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    files = [path.name for path in (ROOT / "keras_vit").rglob("*.py")]
    assert [name for name in files if f" {name} " not in tree] == []


def test_no_file_in_the_repository_is_large():
    listing = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True)
    if listing.returncode:
        pytest.skip("not a git clone")
    paths = [ROOT / name for name in listing.stdout.split("\0") if name]
    assert [
        path.name for path in paths if path.is_file() and path.stat().st_size > 500 * 1024
    ] == []


@pytest.mark.parametrize("address", [("192.0.2.1", 80), ("example.org", 80)])
def test_a_test_that_reaches_for_the_network_fails(address: tuple[str, int]):
    with pytest.raises(pytest.fail.Exception, match=f"reached for the network: {address[0]}"):
        socket.create_connection(address, timeout=1)


def test_a_test_may_serve_a_file_to_itself():
    with socket.create_server(("127.0.0.1", 0)) as server:
        socket.create_connection(server.getsockname(), timeout=1).close()


@pytest.mark.tensorflow
def test_tensorflow_sees_two_devices():
    import tensorflow as tf

    assert len(tf.config.list_logical_devices("CPU")) == 2


@pytest.mark.skipif(keras.backend.backend() == "tensorflow", reason="needs another backend")
def test_tensorflow_is_absent_when_keras_runs_on_another_backend():
    with pytest.raises(ModuleNotFoundError):
        import tensorflow  # noqa: F401
