"""What every test starts from: fixed seeds, two virtual CPU devices, no network, nobody's cache,
tiny models.
"""

import atexit
import ctypes
import gc
import os
import shutil
import socket
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

# All of this must be settled before Keras is imported for the first time.
_HOME = Path(tempfile.mkdtemp(prefix="keras_vit_tests_"))
atexit.register(shutil.rmtree, _HOME, ignore_errors=True)
os.environ["KERAS_HOME"] = str(_HOME / "keras")
# What a machine sets for other programs: proxies, tokens, clusters, devices, the repository of a git hook.
_OF_OTHERS = {
    *("KERAS_VIT_WEIGHTS", "TF_CONFIG", "TPU_NAME", "TF_FORCE_GPU_ALLOW_GROWTH"),
    *("TRANSFORMERS_OFFLINE", "GIT_DIR", "GIT_INDEX_FILE", "GIT_WORK_TREE"),
}
for _name in list(os.environ):
    if (
        _name in _OF_OTHERS
        or _name.lower().endswith("_proxy")
        or _name.startswith(("HF_", "HUGGING_FACE_"))
    ):
        del os.environ[_name]
os.environ["HF_HOME"] = str(_HOME / "huggingface")
os.environ["NO_PROXY"] = "*"
os.environ["MPLBACKEND"] = "agg"
os.environ["CI"] = "true"  # or OpenVINO reports that it was imported, over the network
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
# workers of pytest-xdist inherit it, and share the servers of `warm.py`
if "KERAS_VIT_TESTS_WARM" not in os.environ:
    os.environ["KERAS_VIT_TESTS_WARM"] = str(_HOME / str(os.getpid()))
    (_HOME / str(os.getpid())).mkdir()
_ON_TENSORFLOW = os.environ.setdefault("KERAS_BACKEND", "tensorflow") == "tensorflow"
if not _ON_TENSORFLOW:
    # As on a machine without it. Keras looks for TensorFlow whenever it saves a model, and does
    # without.
    sys.modules["tensorflow"] = None  # type: ignore[assignment]

import keras  # noqa: E402
import psutil  # noqa: E402
import pytest  # noqa: E402
import quick_layers  # noqa: E402
import warm  # noqa: E402

import keras_vit  # noqa: E402
from keras_vit import applications  # noqa: E402
from keras_vit.variants import RESNET_VARIANTS, VARIANTS, VIT_VARIANTS, ResNetVariant, ViTVariant  # noqa: E402

if _ON_TENSORFLOW:
    import tensorflow as tf

    tf.config.set_visible_devices([], "GPU")
    tf.config.set_logical_device_configuration(
        tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * 2
    )


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--profile", metavar="FOLDER", help="measure each test; write FOLDER/tests.csv"
    )
    parser.addoption(
        "--unoptimized",
        action="store_true",
        help="run TensorFlow's graphs as they were traced: for tiny models, optimizing them takes "
        "longer than running them. Make layers quickly, see `quick_layers.py`",
    )


def pytest_configure(config: pytest.Config) -> None:
    # Where pytest-randomly is installed it shuffles; the seeds of each test stay those of
    # `_same_start`.
    config.option.randomly_reset_seed = False
    if config.option.unoptimized:
        quick_layers.skip_tracking_of_plain_values()
        if _ON_TENSORFLOW:
            os.environ[warm.UNOPTIMIZED] = "1"
            warm.choose_optimization()
        else:
            quick_layers.initialize_with_numpy()
    if config.option.profile:
        from profiler import Profiler

        config.pluginmanager.register(
            Profiler(Path(config.option.profile), is_worker=hasattr(config, "workerinput"))
        )


@pytest.hookimpl(tryfirst=True)  # before `-m` reads the marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    mark_all_but_a_sample(items)
    # SavedModel, tf.data and tf.distribute exist on TensorFlow alone. Nothing goes untested: `make
    # test` runs these there.
    if not _ON_TENSORFLOW:
        for item in items:
            if item.get_closest_marker("tensorflow"):
                item.add_marker(
                    pytest.mark.skip(
                        reason="needs TensorFlow: runs in the other half of `make test`"
                    )
                )
            if item.get_closest_marker("once"):
                item.add_marker(
                    pytest.mark.skip(
                        reason="depends on no backend: runs in the other half of `make test`"
                    )
                )


def mark_all_but_a_sample(items: list[pytest.Item]) -> None:
    """Marks the cases of a test that is `sampled(count)` slow, except `count`: the first, the last,
    and others at equal distances, in the order of the parameters and not in that of a shuffle.
    """
    cases: dict[tuple, list[pytest.Function]] = {}
    for item in items:
        if item.get_closest_marker("sampled") and not item.get_closest_marker("slow"):
            assert isinstance(item, pytest.Function)
            cases.setdefault((item.path, item.originalname), []).append(item)
    for same in cases.values():
        same.sort(key=lambda item: tuple(item.callspec.indices.values()))
        marker = same[0].get_closest_marker("sampled")
        assert marker is not None
        count = marker.args[0]
        kept = {round(index * (len(same) - 1) / max(1, count - 1)) for index in range(count)}
        for index, item in enumerate(same):
            if index not in kept:
                item.add_marker(pytest.mark.slow)


def pytest_collection_finish() -> None:
    # What is imported and collected stays to the end; looking through it again and again costs a
    # twentieth of the time.
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)


def pytest_sessionfinish(session: pytest.Session) -> None:
    if not _ON_TENSORFLOW and sys.modules.get("tensorflow") is not None:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
        print(
            "\nTensorFlow was imported although Keras runs on another backend. Floors 0-3 use "
            "`keras.ops` alone."
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
