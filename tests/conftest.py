"""The environment of the tests, the options of pytest, and the choice of the tests that run.

`every_test.py` has the fixtures of all tests.
"""

import atexit
import gc
import importlib
import os
import shutil
import sys
import tempfile
from pathlib import Path

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

import pytest  # noqa: E402
import warm  # noqa: E402


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
    is_worker = hasattr(config, "workerinput")
    # With pytest-xdist, workers run the tests. The process that hands them out needs no fixtures.
    if is_worker or config.getoption("dist", "no") == "no":
        config.pluginmanager.register(importlib.import_module("every_test"))
        if config.option.unoptimized:
            _save_time()
    if config.option.profile:
        from profiler import Profiler

        config.pluginmanager.register(Profiler(Path(config.option.profile), is_worker=is_worker))


def _save_time() -> None:
    import quick_layers

    quick_layers.skip_tracking_of_plain_values()
    if _ON_TENSORFLOW:
        os.environ[warm.UNOPTIMIZED] = "1"
        warm.choose_optimization()
    else:
        quick_layers.initialize_with_numpy()


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
