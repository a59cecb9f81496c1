"""What every test starts from: fixed seeds, two virtual CPU devices, no network, tiny models.

`conftest.py` loads this file where tests run, because importing TensorFlow or JAX takes seconds.
"""

import ctypes
import gc
import os
import socket
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import keras
import psutil
import pytest
import warm

import keras_vit
from keras_vit import applications
from keras_vit.variants import RESNET_VARIANTS, VARIANTS, VIT_VARIANTS, ResNetVariant, ViTVariant

_ON_TENSORFLOW = os.environ["KERAS_BACKEND"] == "tensorflow"
if _ON_TENSORFLOW:
    import tensorflow as tf

    tf.config.set_visible_devices([], "GPU")
    tf.config.set_logical_device_configuration(
        tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * 2
    )


@pytest.fixture(autouse=True)
def _same_start() -> None:
    keras.config.set_dtype_policy("float32")
    with pytest.MonkeyPatch.context() as patch:
        if _ON_TENSORFLOW:
            # It would drop TensorFlow's kernels, which takes a seventh of the time of all tests.
            # `_fresh_module` calls it; nothing but `tf.random` and `tf.data.Dataset.shuffle` needs it.
            patch.setattr(tf.random, "set_seed", lambda seed: None)
        keras.utils.set_random_seed(0)


@pytest.fixture(autouse=True, scope="module")
def _fresh_module() -> Iterator[None]:
    """Compiled functions keep their models alive, and malloc keeps what was freed: the tests would
    end with 10 GB.
    """
    keras.utils.set_random_seed(0)
    yield
    keras.utils.clear_session(free_memory=False)
    if not _ON_TENSORFLOW:
        import jax

        jax.clear_caches()
    _free_memory()


_GROWTH = 100 * 1024 * 1024
_collected_at = 0  # bytes of this process after the last search


def _free_memory() -> None:
    """Frees what a file has left, if this process has grown: a search through all objects after
    each file takes a fifteenth of the time.
    """
    global _collected_at
    if psutil.Process().memory_info().rss < _collected_at + _GROWTH:
        return
    gc.collect()
    gc.freeze()  # what is alive now, such as imported modules, stays
    if sys.platform == "linux":
        ctypes.CDLL(None).malloc_trim(0)
    _collected_at = psutil.Process().memory_info().rss


def _local_only(call: Callable, host_of: Callable) -> Callable:
    def guarded(*arguments, **options):
        host = host_of(*arguments)
        if host in (None, "", "localhost", "::1", "0.0.0.0") or str(host).startswith("127."):
            return call(*arguments, **options)
        # `pytest.fail` is no Exception, so the code under test cannot swallow it.
        pytest.fail(
            f"This test reached for the network: {host}. Serve it from 127.0.0.1, or mark the test "
            f"`network`."
        )

    return guarded


@pytest.fixture(autouse=True)
def _no_network(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.node.get_closest_marker("network"):
        return

    def peer(_: socket.socket, address: object) -> object:
        return address[0] if isinstance(address, tuple) else None  # a string is a path: AF_UNIX

    for name in ("connect", "connect_ex"):
        monkeypatch.setattr(socket.socket, name, _local_only(getattr(socket.socket, name), peer))
    monkeypatch.setattr(
        socket, "getaddrinfo", _local_only(socket.getaddrinfo, lambda host=None, *_: host)
    )


@pytest.fixture(autouse=True, scope="module")
def _warm_judge() -> Iterator[None]:
    """Exports are judged in forks of a process that has imported TensorFlow; `test_verdicts.py`
    starts the processes of users.
    """
    with pytest.MonkeyPatch.context() as patch:
        if _ON_TENSORFLOW:
            from keras_vit.export import verdicts

            patch.setattr(verdicts, "subprocess", SimpleNamespace(run=warm.run))
        yield


@pytest.fixture
def two_replicas():
    """The package's own strategy: TensorFlow takes the sums of several plain MirroredStrategies for
    one another.
    """
    from keras_vit import devices

    return devices._make_strategy("mirrored", ("CPU:0", "CPU:1"))


@pytest.fixture
def tiny_vit() -> ViTVariant:
    """A row that builds in an instant: on images of 32 pixels it sees a grid of 4 by 4."""
    return replace(
        VIT_VARIANTS["ViT_Ti16"],
        name="tiny",
        patch_size=8,
        width=16,
        depth=2,
        num_heads=2,
        mlp_dim=32,
    )


@pytest.fixture
def tiny_resnet() -> Callable[[ResNetVariant], ResNetVariant]:
    """Cuts a row down to one unit in each of two stages, keeping its kind and its constants."""
    return lambda row: replace(row, name="tiny", units=(1, 1))


@pytest.fixture
def figures(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The figures that would have been drawn; their files are empty."""
    found: list[Any] = []

    def keep(figure: Any, path: Path, **_: Any) -> None:
        found.append(figure)
        path.touch()

    monkeypatch.setattr(pytest.importorskip("matplotlib.figure").Figure, "savefig", keep)
    return found


@pytest.fixture(scope="module")
def shallow() -> Iterator[None]:
    """Every model with two blocks and one unit in each stage, wherever the package looks for its
    row.

    For whole files, with `pytestmark = pytest.mark.usefixtures("shallow")`: what they test does not
    depend on the depth, and twelve blocks take six times as long to build, to trace and to save.
    """
    rows = [replace(row, depth=2) for row in VIT_VARIANTS.values()] + list(RESNET_VARIANTS.values())
    with pytest.MonkeyPatch.context() as patch:
        for row in rows:
            if isinstance(row, ResNetVariant):
                row = replace(row, units=(1,) * len(row.units))
            elif row.stem is not None:
                row = replace(row, stem=replace(row.stem, units=(1,) * len(row.stem.units)))
            for table in (
                VIT_VARIANTS if isinstance(row, ViTVariant) else RESNET_VARIANTS,
                VARIANTS,
            ):
                patch.setitem(table, row.name, row)
            door = applications.application(row)
            # In this order: `keras_vit` looks for the name in `applications`, and what it finds is put
            # back at the end.
            patch.setattr(keras_vit, row.name, door)
            patch.setattr(applications, row.name, door)
        yield
