"""Choosing devices, and counting on several of them."""

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import keras
import numpy as np
import pytest
import warm
from warm import HUNG_SECONDS

tf = pytest.importorskip("tensorflow")

from counting_processes import counted, start  # noqa: E402
from free_ports import free_ports  # noqa: E402

from keras_vit import devices  # noqa: E402
from keras_vit.devices import DevicesConfig, connect, memory_gb  # noqa: E402

pytestmark = pytest.mark.tensorflow

SCRIPT = Path(__file__).parent / "count_examples.py"


@pytest.fixture(scope="module")
def on_one_device() -> dict:
    return counted(start(SCRIPT, "one"))[0]


def check(found: dict, expected: dict) -> None:
    for name, logs in expected.items():
        assert found[name]["examples"] == logs["examples"] == int(name.split()[0])
        assert found[name]["accuracy"] == pytest.approx(logs["accuracy"], abs=1e-7)
        assert found[name]["loss"] == pytest.approx(logs["loss"], rel=2e-6)


@pytest.mark.slow
def test_two_workers_count_each_image_once(on_one_device):
    addresses = [f"127.0.0.1:{port}" for port in free_ports(2)]
    configs = [
        {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": index}}
        for index in range(2)
    ]
    for found in counted(
        *(start(SCRIPT, "multi_worker", TF_CONFIG=json.dumps(config)) for config in configs)
    ):
        check(found, on_one_device)


@pytest.mark.slow
def test_jax_on_a_mesh_counts_each_image_once(on_one_device):
    flags = "--xla_force_host_platform_device_count=2"
    check(counted(start(SCRIPT, "mirrored", backend="jax", XLA_FLAGS=flags))[0], on_one_device)


def test_auto_is_one_device_where_there_is_one():
    devices = connect(DevicesConfig())
    assert (devices.kind, devices.num_replicas, devices.is_chief) == ("one", 1, True)


def _sum_of_ones(strategy: tf.distribute.Strategy, size: int) -> list[float]:
    @tf.function
    def summed():
        return strategy.run(
            lambda: tf.distribute.get_replica_context().all_reduce("SUM", [tf.ones(size)])
        )

    return strategy.experimental_local_results(summed())[0][0].numpy().tolist()


def test_models_of_two_sizes_train_on_two_sets_of_devices_in_one_process():
    """Their all-reduces have keys of their own, beside those of a plain strategy of the user's."""
    names = (("CPU:0", "CPU:1"), ("CPU:1", "CPU:0"))
    strategies = [
        *(devices._make_strategy("mirrored", each) for each in names),
        tf.distribute.MirroredStrategy(names[0]),
    ]
    for size, strategy in enumerate(strategies, start=2):
        assert _sum_of_ones(strategy, size) == [2.0] * size
    assert type(strategies[0]).__name__ == "MirroredStrategy"  # what a run reports


@pytest.mark.slow
def test_plain_strategies_mix_up_their_sums():
    """Why the strategy's keys are ours. When this fails, TensorFlow is mended, and
    `devices._make_mirrored_strategy` may go.
    """
    code = (
        "import tensorflow as tf; from test_devices import _sum_of_ones; "
        "cpu = tf.config.list_physical_devices('CPU')[0]; "
        "tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] "
        "* 2); "
        "[_sum_of_ones(tf.distribute.MirroredStrategy(['CPU:0', 'CPU:1']), size) for size in (2, "
        "3)]"
    )
    process = subprocess.run(
        [sys.executable, "-c", code], cwd=SCRIPT.parent, capture_output=True, text=True
    )
    assert process.returncode and "Shape mismatch in the collective instance" in process.stderr


def test_named_devices_are_replicas():
    devices = connect(DevicesConfig(names=("CPU:0", "CPU:1")))
    assert (devices.kind, devices.num_replicas, devices.local_parts) == ("mirrored", 2, 2)


@pytest.mark.parametrize("names", [("CPU:0", "CPU:7"), ("GPU:0",), ("/device:GPU:0", "CPU:0")])
def test_a_device_that_is_not_there_is_refused(names):
    """TensorFlow 2.21 would wait for a CPU that there is not."""
    with pytest.raises(
        ValueError, match=r"no device .*U:[07].*\. Available: cpu:0, cpu:1\. Name some"
    ):
        connect(DevicesConfig(names=names))


def test_names_may_be_written_in_full():
    assert connect(DevicesConfig(kind="one", names=("/device:CPU:1",))).num_replicas == 1


def test_a_run_on_one_named_device_computes_there():
    with connect(DevicesConfig(kind="one", names=("CPU:1",))).scope():
        variable = keras.Variable(np.zeros(2))
        assert variable.value.device.endswith("CPU:1") and tf.add(1, 1).device.endswith("CPU:1")


def test_outputs_of_all_replicas_are_gathered_in_the_order_of_the_rows():
    devices = connect(DevicesConfig(names=("CPU:0", "CPU:1")))
    with devices.scope():
        pixels = keras.Input((2,))
        model = keras.Model(pixels, keras.layers.Rescaling(2.0)(pixels))
    images = np.arange(8, dtype="float32").reshape(4, 2)
    labels, weights = np.array([3, 1, 4, 1]), np.array([1, 1, 1, 0], "float32")
    parts = tf.data.Dataset.from_tensor_slices((images, labels, weights)).batch(2)
    found = devices.forward(model)(next(iter(devices.distribute(parts))))
    for values, expected in zip(found, (2 * images, labels, weights), strict=True):
        np.testing.assert_array_equal(values, expected)


def test_a_forward_pass_drops_nothing_and_scales_bytes():
    pixels = keras.Input((2,))
    model = keras.Model(pixels, keras.layers.Dropout(0.5)(pixels))
    levels = keras.ops.convert_to_tensor(np.array([[0, 51], [255, 255]], "uint8"))
    found = devices.outputs_of(model, levels)
    np.testing.assert_allclose(found, [[-1.0, -0.6], [1.0, 1.0]], atol=1e-6)


def test_a_model_whose_activation_was_changed_is_computed_anew():
    pixels = keras.Input((1,))
    layer = keras.layers.Activation("linear")
    model = keras.Model(pixels, layer(pixels))
    batch = tf.constant([[-1.0]]), np.zeros(1), np.ones(1)
    forward = devices.Devices(kind="one", num_replicas=1).forward
    assert forward(model)(batch)[0].tolist() == [[-1.0]]
    assert forward(model) is forward(model)  # compiled once
    layer.activation = keras.activations.relu
    assert forward(model)(batch)[0].tolist() == [[0.0]]


@pytest.mark.parametrize(
    ("options", "kind", "used", "distributed"),
    [
        ({}, "mirrored", 2, ["cpu:0", "cpu:1"]),
        ({"kind": "one"}, "one", 1, None),
        ({"names": ("CPU:1",)}, "one", 1, ["cpu:1"]),
        ({"kind": "one", "names": ("CPU:1", "CPU:0")}, "one", 1, ["cpu:1"]),
    ],
)
def test_on_jax_all_devices_are_used_unless_one_or_some_are_asked_for(
    monkeypatch, options: dict, kind: str, used: int, distributed: list[str] | None
):
    """On stand-ins of JAX and of `keras.distribution`, with two devices."""
    chosen = []
    jax = SimpleNamespace(
        process_count=lambda: 1,
        process_index=lambda: 0,
        devices=lambda: [SimpleNamespace(device_kind="cpu")],
    )
    monkeypatch.setattr(devices, "jax", jax, raising=False)
    monkeypatch.setattr(keras.distribution, "list_devices", lambda: ["cpu:0", "cpu:1"])
    monkeypatch.setattr(keras.distribution, "DataParallel", lambda *, devices, **_: devices)
    monkeypatch.setattr(keras.distribution, "set_distribution", chosen.append)
    found = devices._connect_jax(DevicesConfig(**options))
    assert (found.kind, found.num_replicas, chosen) == (kind, used, [distributed])


def test_the_precision_is_set():
    connect(DevicesConfig(precision="mixed_bfloat16"))
    assert keras.config.dtype_policy().name == "mixed_bfloat16"


def test_there_is_no_accelerator_to_ask_here():
    assert memory_gb() is None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"kind": "many"},
            "`kind` must be one of auto, one, mirrored, multi_worker, tpu. Received: 'many'",
        ),
        ({"precision": "float8"}, "`precision` must be one of float32"),
    ],
)
def test_bad_choices_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        DevicesConfig(**options)


@pytest.mark.parametrize("text", [None, '{"task": {"index": 0}}'])
def test_workers_are_asked_for_by_name(monkeypatch, text):
    monkeypatch.delenv("TF_CONFIG", raising=False)
    if text:
        monkeypatch.setenv("TF_CONFIG", text)
    with pytest.raises(ValueError, match="needs the workers in TF_CONFIG, for example"):
        connect(DevicesConfig(kind="multi_worker"))


def cluster(task: tuple[str, int] | None = None, **jobs: int) -> str:
    names = {job: [f"{job}{number}:1" for number in range(count)] for job, count in jobs.items()}
    return json.dumps(
        {"cluster": names} | ({} if task is None else {"task": {"type": task[0], "index": task[1]}})
    )


@pytest.mark.parametrize(
    ("text", "count", "index"),
    [
        (None, 0, 0),
        ("", 0, 0),
        (cluster(("worker", 1), worker=3), 3, 1),
        (cluster(("chief", 0), chief=1, worker=2), 3, 0),
        (cluster(("worker", 0), chief=1, worker=2), 3, 1),  # the chief is the first of all
        (cluster(("worker", 1), chief=1, worker=2), 3, 2),
    ],
)
def test_workers_are_counted_from_the_chief(monkeypatch, text: str | None, count: int, index: int):
    monkeypatch.delenv("TF_CONFIG", raising=False)
    if text is not None:
        monkeypatch.setenv("TF_CONFIG", text)
    assert (len(devices._list_workers()), devices._find_worker_index()) == (count, index)
    assert devices.Devices(
        kind="x", num_replicas=3, num_workers=3, worker_index=index
    ).is_chief == (index == 0)


@pytest.mark.parametrize(
    ("environment", "num_gpus", "options", "kind"),
    [
        ({}, 0, {}, "one"),
        ({}, 1, {}, "one"),
        ({}, 2, {}, "mirrored"),
        ({}, 0, {"names": ("CPU:0", "CPU:1")}, "mirrored"),
        ({"TF_CONFIG": cluster(("worker", 0), worker=1)}, 0, {}, "one"),
        ({"TF_CONFIG": cluster(("worker", 0), worker=2)}, 2, {}, "multi_worker"),
        ({"TPU_NAME": "local", "TF_CONFIG": cluster(("worker", 0), worker=2)}, 0, {}, "tpu"),
        ({"TPU_NAME": "local"}, 2, {"kind": "one"}, "one"),
    ],
)
def test_auto_is_what_is_there(
    monkeypatch, environment: dict, num_gpus: int, options: dict, kind: str
):
    for name in ("TF_CONFIG", "TPU_NAME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert devices._choose_tensorflow_kind(DevicesConfig(**options), num_gpus) == kind


@pytest.fixture
def stand_ins(monkeypatch) -> SimpleNamespace:
    """In place of `tf.distribute`, for workers and TPUs, which are not there."""
    found = SimpleNamespace(
        num_hosts=1,
        initialized=[],
        MultiWorkerMirroredStrategy=lambda: "multi_worker",
        TPUStrategy=lambda resolver: SimpleNamespace(
            extended=SimpleNamespace(num_hosts=found.num_hosts), resolver=resolver
        ),
        cluster_resolver=SimpleNamespace(TPUClusterResolver=lambda name: f"resolver of {name}"),
    )
    monkeypatch.setattr(tf, "distribute", found)
    monkeypatch.setattr(tf.config, "experimental_connect_to_cluster", found.initialized.append)
    monkeypatch.setattr(tf.tpu.experimental, "initialize_tpu_system", found.initialized.append)
    monkeypatch.setenv("TPU_NAME", "grpc://10.0.0.2")
    return found


def test_several_workers_have_the_strategy_of_workers(stand_ins):
    assert devices._make_strategy.__wrapped__("multi_worker", ()) == "multi_worker"
    assert not stand_ins.initialized


def test_a_tpu_of_one_host_is_found_by_its_name_and_of_several_refused(stand_ins):
    strategy = devices._make_strategy.__wrapped__("tpu", ())
    assert strategy.resolver == "resolver of grpc://10.0.0.2"
    assert stand_ins.initialized == [strategy.resolver] * 2
    stand_ins.num_hosts = 2
    with pytest.raises(ValueError, match="has 2 hosts.*JAX backend"):
        devices._make_strategy.__wrapped__("tpu", ())


@pytest.mark.parametrize(
    ("asked", "num_gpus", "enabled"), [(True, 1, 1), (True, 0, 0), (False, 1, 0)]
)
def test_operations_of_gpus_are_deterministic_if_asked(
    asked: bool, num_gpus: int, enabled: int, monkeypatch
):
    calls = []
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind=None: ["GPU:0"] * num_gpus)
    monkeypatch.setattr(tf.config.experimental, "enable_op_determinism", lambda: calls.append("on"))
    monkeypatch.setattr(
        tf.config.experimental, "get_device_details", lambda _: {"device_name": "GPU"}
    )
    connect(DevicesConfig(kind="one", deterministic=asked))
    assert calls == ["on"] * enabled


def test_a_garbled_tf_config_is_named(monkeypatch):
    monkeypatch.setenv("TF_CONFIG", "{worker: 3")
    with pytest.raises(ValueError, match="TF_CONFIG is not JSON"):
        connect(DevicesConfig(kind="auto"))


TWO_RUNS = """
import sys
import tensorflow as tf
cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
from dataclasses import replace
from keras_vit.train import DataConfig, DevicesConfig, LoopConfig, PretrainConfig, RunConfig, pretrain, smoke_form
for kind in ("digits", "fractals"):
    run = RunConfig(data=DataConfig(kind=kind), loop=LoopConfig(total_steps=1))
    config = smoke_form(PretrainConfig(model="ViT_Ti16", run=run))
    devices = DevicesConfig(kind="mirrored", names=("CPU:0", "CPU:1"))
    found = pretrain(replace(config, run=replace(config.run, devices=devices)), f"{sys.argv[1]}/{kind}")
    print("examples:", found["validation/examples"])
"""


@pytest.mark.slow
def test_two_trainings_in_one_process_do_not_mix_their_sums(tmp_path: Path):
    """With a strategy each, the second would wait for, or refuse, what the first left behind."""
    command = [sys.executable, "-c", TWO_RUNS, str(tmp_path)]
    env = {**os.environ, "KERAS_BACKEND": "tensorflow", warm.UNOPTIMIZED: "1"}
    done = warm.run(command, env=env, capture_output=True, text=True, timeout=HUNG_SECONDS)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.count("examples: ") == 2


HIDDEN = """
import tensorflow as tf
calls, hide = [], tf.config.set_visible_devices
tf.config.set_visible_devices = lambda *arguments: calls.append(arguments) or hide(*arguments)
import keras_vit.evaluate.measure, keras_vit.train
print(calls)
tf.constant(1)  # as when a folder is read
from keras_vit.devices import connect
print(connect().description)
"""


@pytest.mark.slow
def test_on_jax_gpus_are_hidden_from_tensorflow_before_it_reads_a_folder():
    """After its first operation they cannot be hidden: it would have reserved their memory."""
    env = {**os.environ, "KERAS_BACKEND": "jax"}
    done = subprocess.run([sys.executable, "-c", HIDDEN], env=env, capture_output=True, text=True)
    assert done.stdout.splitlines() == ["[([], 'GPU')]", "1 x cpu on 1 processes, JAX"], done.stderr


@pytest.mark.parametrize(
    ("error", "lost"),
    [
        (tf.errors.UnavailableError(None, None, "failed to connect to all addresses"), True),
        (tf.errors.AbortedError(None, None, "Connection reset by peer"), True),
        (tf.errors.CancelledError(None, None, "RecvAsync is cancelled."), True),
        (tf.errors.DeadlineExceededError(None, None, ""), True),
        (
            tf.errors.InternalError(None, None, "Collective ops is aborted by: worker 1 is down"),
            True,
        ),
        (tf.errors.InternalError(None, None, "Blas GEMM launch failed"), False),
        (tf.errors.InvalidArgumentError(None, None, "shapes do not match"), False),
        (ValueError("connection"), False),
    ],
)
def test_errors_of_a_lost_worker(error: Exception, lost: bool):
    assert devices.is_of_a_lost_worker(error) is lost
