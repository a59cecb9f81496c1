"""The devices of a run (one device, the GPUs of a machine, several machines, a TPU) and its
precision.

TensorFlow uses tf.distribute, JAX uses `keras.distribution`. The rest of the package uses only
`Devices`.
"""

import functools
import itertools
import json
import os
import re
import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from keras_vit.levels import to_pixels

if keras.backend.backend() == "jax":
    import jax
    from jax.experimental import multihost_utils

    # TensorFlow only reads the data here. It would reserve the memory of all GPUs at its first
    # operation, which may be the reading of a folder; then they cannot be hidden any more.
    with suppress(RuntimeError):
        tf.config.set_visible_devices([], "GPU")

Forward = Callable[[tuple], tuple[np.ndarray, np.ndarray, np.ndarray]]

KINDS = ("auto", "one", "mirrored", "multi_worker", "tpu")
PRECISIONS = ("float32", "mixed_bfloat16", "mixed_float16")


@dataclass(frozen=True, kw_only=True, slots=True)
class DevicesConfig:
    """Which devices to use, and in which precision to compute.

    Attributes:
        kind: "one"; "mirrored": all GPUs of this machine; "multi_worker": the machines listed in
            TF_CONFIG (on JAX: KERAS_DISTRIBUTION_*), which must share the folder of the run; "tpu":
            the TPU named by TPU_NAME; "auto": the last of these that is available.
        precision: "float32", "mixed_bfloat16" (TPUs, recent GPUs) or "mixed_float16" (with loss
            scaling).
        names: Devices of this machine to use, such as ("GPU:0", "GPU:1"); () for all.
        jit_compile: Whether to compile with XLA; None lets Keras decide. JAX always compiles.
        deterministic: Whether TensorFlow on GPUs uses only deterministic operations. If False, a
            run that was killed and resumed may not equal an uninterrupted run bit by bit. CPUs are
            always deterministic; for JAX on GPUs set XLA_FLAGS=--xla_gpu_deterministic_ops=true.
    """

    kind: str = "auto"
    precision: str = "float32"
    names: tuple[str, ...] = ()
    jit_compile: bool | None = None
    deterministic: bool = True

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"`kind` must be one of {', '.join(KINDS)}. Received: {self.kind!r}.")
        if self.precision not in PRECISIONS:
            raise ValueError(
                f"`precision` must be one of {', '.join(PRECISIONS)}. Received: {self.precision!r}."
            )


@dataclass(frozen=True, kw_only=True)
class Devices:
    """The devices of a run.

    Attributes:
        kind: As in `DevicesConfig`, with "auto" resolved.
        num_replicas: Number of copies of the model, over all workers.
        num_workers, worker_index: Number of processes of the run, and the index of this one.
        scope: Context in which models and optimizers are created.
        distribute: Converts a tf.data data set with one batch for each local part to the data set
            that `fit` takes.
        gather: Takes a number of this worker, returns the numbers of all workers. Every worker must
            call it.
        forward: Takes a model, returns a function that runs it on a batch (images, labels, weights)
            of the distributed data set. The function returns NumPy arrays of the whole batch
            (outputs, labels, weights) on every worker. It scales uint8 images to [-1, 1].
        description: Text for reports.
    """

    kind: str
    num_replicas: int
    num_workers: int = 1
    worker_index: int = 0
    scope: Callable[[], AbstractContextManager] = field(default=nullcontext, repr=False)
    distribute: Callable[[Any], Any] = field(default=lambda dataset: dataset, repr=False)
    gather: Callable[[int], list[int]] = field(default=lambda value: [value], repr=False)
    forward: Callable[[keras.Model], Forward] = field(
        default=lambda model: _make_forward(model), repr=False
    )
    description: str = ""

    @property
    def is_chief(self) -> bool:
        """Whether this worker writes checkpoints and logs."""
        return self.worker_index == 0

    @property
    def local_parts(self) -> int:
        """Number of equal batches that a worker's rows are split into before `fit`: on TensorFlow,
        one for each local replica.
        """
        return (
            self.num_replicas // self.num_workers if keras.backend.backend() == "tensorflow" else 1
        )


def connect(config: DevicesConfig = DevicesConfig()) -> Devices:
    """Sets the precision and returns the devices. Call it before any other computation.

    Raises:
        ValueError: If the requested devices are not available, or the backend is neither TensorFlow
            nor JAX.

    Example:
        >>> connect(DevicesConfig(kind="one")).num_replicas
        1
    """
    keras.config.set_dtype_policy(config.precision)
    backend = keras.backend.backend()
    if backend == "tensorflow":
        return _connect_tensorflow(config)
    if backend == "jax":
        return _connect_jax(config)
    raise ValueError(f"Training runs on TensorFlow and on JAX. Received: KERAS_BACKEND={backend}.")


def _connect_tensorflow(config: DevicesConfig) -> Devices:
    num_gpus = len(tf.config.list_physical_devices("GPU"))
    # CPUs are deterministic without it, and it would make the input pipeline sequential.
    if config.deterministic and num_gpus:
        tf.config.experimental.enable_op_determinism()
    kind = _choose_tensorflow_kind(config, num_gpus)
    _check_names(
        config.names,
        [device.name for device in tf.config.list_logical_devices()] if config.names else [],
    )
    if kind == "one":
        device = config.names[0] if config.names else None
        scope = (lambda: tf.device(device)) if device else nullcontext
        return Devices(
            kind="one", num_replicas=1, scope=scope, description=device or _name_local_device()
        )
    strategy = _make_strategy(kind, config.names)
    num_workers = len(_list_workers()) if kind == "multi_worker" else 1
    return Devices(
        kind=kind,
        num_replicas=strategy.num_replicas_in_sync,
        num_workers=num_workers,
        worker_index=_find_worker_index() if num_workers > 1 else 0,
        scope=strategy.scope,
        # With this method TensorFlow neither splits nor shards the batches: each replica takes the
        # next one.
        distribute=lambda dataset: strategy.distribute_datasets_from_function(lambda _: dataset),
        gather=lambda value: _gather_on_tensorflow(strategy, value),
        forward=lambda model: _reuse_forward(
            model, strategy, functools.partial(_make_replica_forward, strategy)
        ),
        description=(
            f"{type(strategy).__name__}, {strategy.num_replicas_in_sync} replicas on "
            f"{num_workers} workers"
        ),
    )


@functools.cache
def _make_strategy(kind: str, names: tuple[str, ...]) -> tf.distribute.Strategy:
    """Creates one strategy for each kind and process: TensorFlow 2.21 confuses the reductions of
    several strategies.
    """
    if kind == "mirrored":
        return _make_mirrored_strategy(names)
    if kind == "multi_worker":
        return tf.distribute.MultiWorkerMirroredStrategy()
    resolver = tf.distribute.cluster_resolver.TPUClusterResolver(os.environ.get("TPU_NAME", ""))
    tf.config.experimental_connect_to_cluster(resolver)
    tf.tpu.experimental.initialize_tpu_system(resolver)
    strategy = tf.distribute.TPUStrategy(resolver)
    if strategy.extended.num_hosts > 1:
        raise ValueError(
            f"This TPU has {strategy.extended.num_hosts} hosts; on TensorFlow one is supported. Use "
            "the JAX backend, with one process for each host."
        )
    return strategy


_MIRRORED_COUNT = itertools.count(1)


def _make_mirrored_strategy(names: tuple[str, ...]) -> tf.distribute.Strategy:
    """Creates a MirroredStrategy with its own keys for all-reduces.

    TensorFlow 2.21 starts the keys of every MirroredStrategy at the same number, and stores shapes
    and devices by key. A second strategy with a model of another size, or with other devices, then
    raises "Shape mismatch in the collective instance". A test in `tests/test_devices.py` fails when
    this workaround is no longer needed.
    """

    class MirroredStrategy(tf.distribute.MirroredStrategy):
        # TensorFlow's own tests set this attribute to separate strategies.
        _collective_key_base = 100_000 * next(_MIRRORED_COUNT)

    return MirroredStrategy(list(names) or None)


def _gather_on_tensorflow(strategy: tf.distribute.Strategy, value: int) -> list[int]:
    return strategy.gather(strategy.run(lambda: tf.constant([value])), axis=0).numpy().tolist()


# Compiled forward passes, because tracing takes a second and a model is often evaluated on several
# data sets.
_FORWARDS: weakref.WeakKeyDictionary[keras.Model, dict[Any, tuple[Any, Forward]]] = (
    weakref.WeakKeyDictionary()
)


def _reuse_forward(
    model: keras.Model, where: Any, make: Callable[[keras.Model], Forward]
) -> Forward:
    """Returns the stored result of `make(model)`, or calls it again if the structure of the model
    has changed. Changed values of variables do not matter.
    """
    kept, now = _FORWARDS.setdefault(model, {}), _describe_structure(model)
    if where not in kept or kept[where][0] != now:
        kept[where] = now, make(model)
    return kept[where][1]


def _describe_structure(model: keras.Model) -> tuple:
    layers = [
        (layer.dtype_policy.name, id(getattr(layer, "activation", None))) for layer in model.layers
    ]
    return tuple(map(id, model.variables)), tuple(layers)


def _make_forward(model: keras.Model) -> Forward:
    """Returns the forward pass on the default device of Keras, in this process."""
    return _reuse_forward(
        model,
        None,
        _make_jax_forward if keras.backend.backend() == "jax" else _make_tensorflow_forward,
    )


def _make_tensorflow_forward(model: keras.Model) -> Forward:
    # `_FORWARDS` is keyed by the model, so a strong reference here would keep the model forever.
    alive = weakref.ref(model)
    compiled = tf.function(
        lambda images: outputs_of(alive(), images), reduce_retracing=True, autograph=False
    )
    return lambda batch: (compiled(batch[0]).numpy(), *map(np.asarray, batch[1:]))


def outputs_of(model: keras.Model, images: Any) -> Any:
    """Returns float32 outputs for images in [-1, 1], or for uint8 images, which are scaled."""
    if keras.backend.standardize_dtype(images.dtype) == "uint8":
        images = to_pixels(keras.ops.cast(images, "float32"))
    return keras.ops.cast(model(images, training=False), "float32")


def _make_replica_forward(strategy: tf.distribute.Strategy, model: keras.Model) -> Forward:
    alive = weakref.ref(model)

    @tf.function(reduce_retracing=True, autograph=False)
    def on_all(batch: tuple) -> tuple:
        parts = strategy.run(
            lambda images, *others: (outputs_of(alive(), images), *others), args=batch
        )
        # `gather` concatenates in the order of the replicas, which is the order of the rows.
        return tuple(strategy.gather(part, axis=0) for part in parts)

    return lambda batch: tuple(values.numpy() for values in on_all(batch))


def _choose_tensorflow_kind(config: DevicesConfig, num_gpus: int) -> str:
    if config.kind == "multi_worker" and not _list_workers():
        raise ValueError(
            "`kind='multi_worker'` needs the workers in TF_CONFIG, for example "
            '{"cluster": {"worker": ["host1:2222", "host2:2222"]}, '
            '"task": {"type": "worker", "index": 0}}. '
            f"Received: TF_CONFIG={os.environ.get('TF_CONFIG')!r}."
        )
    if config.kind != "auto":
        return config.kind
    if os.environ.get("TPU_NAME"):
        return "tpu"
    if len(_list_workers()) > 1:
        return "multi_worker"
    return "mirrored" if max(num_gpus, len(config.names)) > 1 else "one"


def _list_workers() -> list[str]:
    cluster = _read_tf_config().get("cluster", {})
    return [*cluster.get("chief", []), *cluster.get("worker", [])]


def _find_worker_index() -> int:
    task = _read_tf_config().get("task", {})
    has_chief = len(_read_tf_config().get("cluster", {}).get("chief", []))
    return 0 if task.get("type") == "chief" else int(task.get("index", 0)) + has_chief


def _read_tf_config() -> dict:
    text = os.environ.get("TF_CONFIG") or "{}"
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"TF_CONFIG is not JSON: {error}. Received: {text!r}.") from error


def _check_names(names: tuple[str, ...], known: list[str]) -> None:
    """Raises ValueError for unknown devices: TensorFlow 2.21 would wait forever for a CPU that does
    not exist.
    """
    there = {name.lower().rpartition("/")[2].removeprefix("device:") for name in known}
    missing = [
        name
        for name in names
        if name.lower().rpartition("/")[2].removeprefix("device:") not in there
    ]
    if missing:
        raise ValueError(
            f"This machine has no device {', '.join(missing)}. Available: "
            f"{', '.join(sorted(there))}. Name some of these in `devices.names`, or omit it to use "
            "all."
        )


def _name_local_device() -> str:
    gpus = tf.config.list_physical_devices("GPU")
    return (
        tf.config.experimental.get_device_details(gpus[0]).get("device_name", "GPU")
        if gpus
        else "CPU"
    )


def _connect_jax(config: DevicesConfig) -> Devices:
    if (
        config.kind == "multi_worker"
        or int(os.environ.get("KERAS_DISTRIBUTION_NUM_PROCESSES", 1)) > 1
    ):
        keras.distribution.initialize()
    if config.kind == "tpu" and jax.default_backend() != "tpu":
        raise ValueError(f"`kind='tpu'` needs a TPU. JAX found: {jax.default_backend()}.")
    _check_names(config.names, keras.distribution.list_devices())
    names = [name.lower() for name in config.names] or keras.distribution.list_devices()
    names = names[:1] if config.kind == "one" else names
    num_workers, worker = jax.process_count(), jax.process_index()
    kind = "multi_worker" if num_workers > 1 else "mirrored" if len(names) > 1 else "one"
    distribution = None
    if len(names) > 1 or config.names:
        distribution = keras.distribution.DataParallel(devices=names, auto_shard_dataset=False)
    keras.distribution.set_distribution(distribution)
    return Devices(
        kind=kind,
        num_replicas=len(names),
        num_workers=num_workers,
        worker_index=worker,
        gather=lambda value: np.ravel(multihost_utils.process_allgather(np.array(value))).tolist(),
        forward=_make_forward if distribution is None else _make_mesh_forward,
        description=f"{len(names)} x {jax.devices()[0].device_kind} on {num_workers} processes, JAX",
    )


def _make_jax_forward(model: keras.Model, *, over_devices: bool = False) -> Forward:
    variables = [*model.trainable_variables, *model.non_trainable_variables]

    alive = weakref.ref(model)

    @jax.jit
    def compiled(values: list, images: jax.Array) -> jax.Array:
        # The values are arguments: as constants they would be compiled into the program.
        with keras.StatelessScope(list(zip(variables, values, strict=True))):
            return outputs_of(alive(), images)

    def forward(batch: tuple) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        images = np.asarray(batch[0])
        outputs = compiled(
            [variable.value for variable in variables], _shard(images) if over_devices else images
        )
        return tuple(_gather_on_jax(value) for value in (outputs, *batch[1:]))

    return forward


def _make_mesh_forward(model: keras.Model) -> Forward:
    mesh = tuple(keras.distribution.list_devices())
    return _reuse_forward(model, mesh, functools.partial(_make_jax_forward, over_devices=True))


def _shard(images: np.ndarray) -> Any:
    """Places the rows of this process on its devices."""
    layout = keras.distribution.distribution().get_data_layout(images.shape)
    return jax.make_array_from_process_local_data(layout.backend_layout, images)


def _gather_on_jax(values: Any) -> np.ndarray:
    if jax.process_count() == 1:
        return np.asarray(values)
    return np.asarray(multihost_utils.process_allgather(values, tiled=True))


def is_of_a_lost_worker(error: BaseException) -> bool:
    """Returns whether the backend raised this error because another worker of the run is
    unreachable.
    """
    if keras.backend.backend() == "jax":
        return isinstance(error, jax.errors.JaxRuntimeError) and bool(_LOST.search(str(error)))
    of_connections = (tf.errors.UnavailableError, tf.errors.AbortedError, tf.errors.CancelledError)
    if isinstance(error, (*of_connections, tf.errors.DeadlineExceededError)):
        return True
    return isinstance(error, tf.errors.OpError) and bool(_LOST.search(str(error)))


_LOST = re.compile(
    "collective|coordination|heartbeat|gloo|connection|socket|unavailable|deadline", re.IGNORECASE
)


def has_accelerator() -> bool:
    """Returns whether a GPU or a TPU is available."""
    if keras.backend.backend() == "jax":
        return jax.default_backend() != "cpu"
    return bool(tf.config.list_physical_devices("GPU") or os.environ.get("TPU_NAME"))


def memory_gb() -> float | None:
    """Returns the memory in use on the first accelerator, in 10^9 bytes; None if there is no
    accelerator or it does not report its memory.
    """
    if keras.backend.backend() == "jax":
        used = (jax.local_devices()[0].memory_stats() or {}).get("bytes_in_use")
        return None if used is None else used / 1e9
    gpus = tf.config.list_logical_devices("GPU")
    return tf.config.experimental.get_memory_info(gpus[0].name)["current"] / 1e9 if gpus else None
