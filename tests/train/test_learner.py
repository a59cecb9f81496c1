"""N devices are one: the same thirty steps on one device, replicas, workers, micro-batches, with
rematerialization.
"""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import keras
import numpy as np
import pytest
import warm
from warm import HUNG_SECONDS

tf = pytest.importorskip("tensorflow")

from free_ports import free_ports  # noqa: E402

from keras_vit.layers import TransformerBlock  # noqa: E402
from keras_vit.layers.remat import Remat  # noqa: E402
from keras_vit.models import resnet, vision_transformer  # noqa: E402
from keras_vit.train.learner import make_learner, use_averaged_weights  # noqa: E402
from keras_vit.train.losses import classification, softmax_cross_entropy  # noqa: E402
from keras_vit.train.optimizers import OptimizerConfig, make_optimizer  # noqa: E402
from keras_vit.train.remat import rematerialize  # noqa: E402
from keras_vit.variants import RESNET_VARIANTS  # noqa: E402

pytestmark = pytest.mark.tensorflow

SCRIPT = Path(__file__).parent / "thirty_steps.py"


def start(
    output: Path, *arguments: str, backend: str = "tensorflow", **environment: str
) -> subprocess.Popen:
    env = {**os.environ, "KERAS_BACKEND": backend, warm.UNOPTIMIZED: "1", **environment}
    command = [sys.executable, str(SCRIPT), str(output), *arguments]
    return warm.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def finish(*processes: subprocess.Popen) -> None:
    outputs = [process.communicate(timeout=HUNG_SECONDS)[0] for process in processes]
    assert [process.returncode for process in processes] == [0] * len(processes), outputs[0][-3000:]


def thirty_steps(
    folder: Path, *arguments: str, backend: str = "tensorflow", **environment: str
) -> dict:
    output = folder / f"{backend}-{'-'.join(arguments)}.npz"
    finish(start(output, *arguments, backend=backend, **environment))
    return dict(np.load(output))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("thirty_steps")


@pytest.fixture(scope="module")
def on_one_device(folder: Path) -> dict:
    return thirty_steps(folder, "one")


def check_same(found: dict, expected: dict, tolerance: float) -> None:
    assert found.keys() == expected.keys()
    # it learned, so there was something to differ in
    assert expected["losses"][-1, 0] < expected["losses"][0, 0]
    for name, values in expected.items():
        error = np.abs(found[name] - values).max() / max(np.abs(values).max(), 1e-12)
        assert error <= tolerance, (name, error)


@pytest.mark.parametrize(
    "arguments",
    [
        ("mirrored", "2"),
        pytest.param(("mirrored", "4"), marks=pytest.mark.slow),
        ("accumulation",),
        pytest.param(("remat",), marks=pytest.mark.slow),
    ],
)
def test_replicas_accumulation_and_remat_equal_one_device(
    folder: Path, on_one_device: dict, arguments: tuple
):
    check_same(thirty_steps(folder, *arguments), on_one_device, 1e-5)


@pytest.mark.slow
def test_two_workers_equal_one_device(folder: Path, on_one_device: dict):
    workers = ", ".join(f'"127.0.0.1:{port}"' for port in free_ports(2))
    config = '{"cluster": {"worker": [%s]}, "task": {"type": "worker", "index": %d}}'
    output = folder / "workers.npz"
    finish(
        *(start(output, "multi_worker", TF_CONFIG=config % (workers, index)) for index in range(2))
    )
    check_same(dict(np.load(output)), on_one_device, 1e-5)


@pytest.fixture(scope="module")
def on_jax(folder: Path) -> dict:
    return thirty_steps(folder, "one", backend="jax")


def test_jax_equals_tensorflow(on_jax: dict, on_one_device: dict):
    check_same(on_jax, on_one_device, 1e-4)


@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param(("mirrored", "4"), marks=pytest.mark.slow),
        ("accumulation",),
        pytest.param(("remat",), marks=pytest.mark.slow),
    ],
)
def test_jax_on_a_mesh_equals_jax_on_one_device(folder: Path, on_jax: dict, arguments: tuple):
    check_same(thirty_steps(folder, *arguments, backend="jax"), on_jax, 1e-4)


@pytest.mark.slow
def test_two_jax_processes_equal_one(folder: Path, on_jax: dict):
    (port,) = free_ports(1)
    environment = {
        "KERAS_DISTRIBUTION_JOB_ADDRESSES": f"127.0.0.1:{port},127.0.0.1:{port}",
        "KERAS_DISTRIBUTION_NUM_PROCESSES": "2",
    }
    output = folder / "processes.npz"
    ids = [{**environment, "KERAS_DISTRIBUTION_PROCESS_ID": str(index)} for index in range(2)]
    finish(*(start(output, "multi_worker", backend="jax", **own) for own in ids))
    check_same(dict(np.load(output)), on_jax, 1e-4)


@pytest.mark.parametrize("backend", [pytest.param("tensorflow", marks=pytest.mark.slow), "jax"])
def test_float16_scales_its_loss_and_learns(folder: Path, backend: str):
    found = thirty_steps(
        folder, "mirrored", "2", backend=backend, PRECISION="mixed_float16", DROPOUT="0.1"
    )
    assert np.isfinite(found["losses"][:, 0]).all()
    assert found["losses"][-5:, 0].mean() < found["losses"][:5, 0].mean() - 0.1


# In one process from here on, on the two virtual devices of the tests.


def data(num_batches: int = 8, batch_size: int = 16) -> tuple[np.ndarray, np.ndarray]:
    draws = np.random.RandomState(1)
    images = draws.normal(size=(num_batches * batch_size, 32, 32, 3)).astype("float32")
    return images, draws.randint(0, 10, num_batches * batch_size)


def tiny(row, seed: int = 0, **options) -> keras.Model:
    return with_random_weights(
        vision_transformer(row, keras.Input((32, 32, 3)), classes=10, **options), seed
    )


def with_random_weights(model: keras.Model, seed: int = 0) -> keras.Model:
    draws = np.random.RandomState(seed)
    for variable in model.trainable_variables:
        variable.assign(draws.normal(size=variable.shape) * 0.2 + variable.path.endswith("gamma"))
    return model


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["vit", "hybrid", "bit", "resnet", "axial_resnet"])
def test_two_replicas_give_the_bits_of_two_micro_batches(
    tiny_vit, tiny_resnet, two_replicas, kind: str
):
    """Of a convolutional model too, where Adam makes large differences of any rounding.

    One operation after the other: in graphs, TensorFlow fuses others inside the loop over
        micro-batches than outside.
    """
    rows = {"bit": "BiT_R50x1", "resnet": "ResNet50x1", "axial_resnet": "AxialResNet50"}
    stem = tiny_resnet(RESNET_VARIANTS["ResNet50x1"])
    images, labels = data(2)

    def weights(
        strategy: tf.distribute.Strategy, num_replicas: int, accumulation_steps: int
    ) -> list[np.ndarray]:
        with strategy.scope():
            if kind in rows:
                row = tiny_resnet(RESNET_VARIANTS[rows[kind]])
                model = with_random_weights(resnet(row, keras.Input((32, 32, 3)), classes=10))
            else:
                model = tiny(
                    replace(tiny_vit, patch_size=1, stem=stem) if kind == "hybrid" else tiny_vit
                )
            config = OptimizerConfig(learning_rate=1e-2, schedule="constant", weight_decay=0.1)
            options = {
                "num_replicas": num_replicas,
                "accumulation_steps": accumulation_steps,
                "run_eagerly": True,
            }
            learner = make_learner(
                model, make_optimizer(config, model, 2), batch_rows=16, clip_norm=1.0, **options
            )
        batches = tf.data.Dataset.from_tensor_slices(
            (images, labels, np.ones(len(images), "float32"))
        )
        batches = strategy.distribute_datasets_from_function(
            lambda _: batches.batch(16 // num_replicas)
        )
        learner.fit(batches, steps_per_epoch=2, verbose=0, shuffle=False)
        return [np.array(variable) for variable in model.trainable_variables]

    micro_batches = weights(tf.distribute.OneDeviceStrategy("CPU:0"), 1, 2)
    for found, expected in zip(weights(two_replicas, 2, 1), micro_batches, strict=True):
        np.testing.assert_array_equal(found, expected)


@pytest.mark.slow
def test_plain_keras_clips_each_replica(tiny_vit, two_replicas):
    """Why the step is ours. When this fails, Keras is mended, and the step may become Keras's
    again.
    """
    images, labels = data()

    def weights(strategy: tf.distribute.Strategy) -> list[np.ndarray]:
        with strategy.scope():
            model = tiny(tiny_vit)
            optimizer = keras.optimizers.SGD(0.5, global_clipnorm=0.1)
            loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
            model.compile(optimizer=optimizer, loss=loss)
        model.fit(images, labels, batch_size=16, epochs=1, shuffle=False, verbose=0)
        return [np.array(variable) for variable in model.trainable_variables]

    one = weights(tf.distribute.OneDeviceStrategy("CPU:0"))
    two = weights(two_replicas)
    assert max(np.abs(a - b).max() / np.abs(a).max() for a, b in zip(one, two, strict=True)) > 1e-3


def test_replicas_draw_their_own_dropout_masks(tiny_vit, two_replicas):
    with two_replicas.scope():
        model = tiny(tiny_vit, dropout_rate=0.5)
        optimizer = make_optimizer(OptimizerConfig(name="momentum", learning_rate=0.0), model, 10)
        learner = make_learner(model, optimizer, batch_rows=2, num_replicas=2)
    image = tf.ones((1, 32, 32, 3))

    @tf.function
    def logits():
        from keras_vit.train.tensorflow_step import _call_with_own_masks

        return two_replicas.run(
            lambda: _call_with_own_masks(learner, lambda: learner(image, training=True))
        )

    first, second = (value.numpy() for value in two_replicas.experimental_local_results(logits()))
    assert np.abs(first - second).max() > 1e-3
    for seed in learner.seeds:  # the stored seeds moved on, by as much on both
        one, other = (
            value.numpy().tolist() for value in two_replicas.experimental_local_results(seed._value)
        )
        assert one == other and one[1] >= 1


@pytest.mark.parametrize(
    ("dropout_rate", "axial"),
    [
        (0.1, False),
        (0.0, True),
        pytest.param(0.0, False, marks=pytest.mark.slow),
        pytest.param(0.1, True, marks=pytest.mark.slow),
    ],
)
def test_remat_gives_the_same_gradients(tiny_vit, dropout_rate: float, axial: bool):
    model = tiny(
        replace(tiny_vit, axial=axial),
        dropout_rate=dropout_rate,
        stochastic_depth_rate=dropout_rate,
    )
    images, labels = data(1)
    before = [variable.numpy() for variable in model.non_trainable_variables]

    def gradients(which: keras.Model) -> tuple[list, list]:
        for variable, value in zip(model.non_trainable_variables, before, strict=True):
            variable.assign(value)

        @tf.function
        def compute():
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(softmax_cross_entropy(labels, which(images, training=True)))
            return tape.gradient(loss, [variable.value for variable in model.trainable_variables])

        return [g.numpy() for g in compute()], [
            variable.numpy() for variable in model.non_trainable_variables
        ]

    plain, seeds = gradients(model)
    again, seeds_again = gradients(rematerialize(model))
    largest = max(np.abs(a).max() for a in plain)
    for a, b in zip(
        plain, again, strict=True
    ):  # a key's bias has the gradient 0: what is there is others' rounding
        np.testing.assert_allclose(b, a, rtol=1e-5, atol=1e-6 * np.abs(a).max() + 1e-7 * largest)
    for a, b in zip(seeds, seeds_again, strict=True):
        assert (a == b).all()


@pytest.mark.parametrize(
    ("kind", "count"),
    [("vit", 2), ("axial_vit", 2), ("hybrid", 4), ("bit", 2), ("axial_resnet", 2)],
)
def test_remat_wraps_each_block_and_each_unit(tiny_vit, tiny_resnet, kind: str, count: int):
    """The ViT has two blocks, the hybrid two units in its stem, and the ResNets two units."""
    pixels = keras.Input((32, 32, 3))
    if kind in ("bit", "axial_resnet"):
        name = {"bit": "BiT_R50x1", "axial_resnet": "AxialResNet50"}[kind]
        model = resnet(tiny_resnet(RESNET_VARIANTS[name]), pixels, classes=10)
    else:
        stem = tiny_resnet(RESNET_VARIANTS["ResNet50x1"])
        changes = {"hybrid": {"patch_size": 1, "stem": stem}, "axial_vit": {"axial": True}}
        model = vision_transformer(replace(tiny_vit, **changes.get(kind, {})), pixels, classes=10)
    assert sum(isinstance(layer, Remat) for layer in rematerialize(model).layers) == count


def loss_scale_at_rest(row, strategy: tf.distribute.Strategy) -> float:
    """From a loss scale far too large to one at which no gradient overflows."""
    images, labels = data(1, 8)
    num_replicas = strategy.num_replicas_in_sync
    with strategy.scope():
        model = tiny(row)
        optimizer = make_optimizer(
            OptimizerConfig(name="momentum", learning_rate=0.0), model, 40, loss_scaling=True
        )
        learner = make_learner(model, optimizer, batch_rows=8, num_replicas=num_replicas)
    optimizer.loss_scale.assign(2.0**28)
    batches = tf.data.Dataset.from_tensor_slices((images, labels, np.ones(8, "float32")))
    batches = batches.batch(8 // num_replicas).repeat()
    distributed = strategy.distribute_datasets_from_function(lambda _: batches)
    learner.fit(distributed, steps_per_epoch=24, verbose=0, shuffle=False)
    return float(optimizer.loss_scale.numpy())


def test_the_same_steps_overflow_on_one_device_and_on_two_replicas(tiny_vit, two_replicas):
    keras.config.set_dtype_policy("mixed_float16")
    one = loss_scale_at_rest(tiny_vit, tf.distribute.OneDeviceStrategy("CPU:0"))
    two = loss_scale_at_rest(tiny_vit, two_replicas)
    assert 1 < one < 2.0**28
    assert two == one  # half of it, when the loss was divided by the rows of a replica


def test_an_example_of_weight_0_is_not_there(tiny_vit):
    images, labels = data(1, 6)

    def trained(rows: int, weights: list[float]) -> list[np.ndarray]:
        model = tiny(tiny_vit)
        learner = make_learner(
            model, make_optimizer(OptimizerConfig(), model, 10), batch_rows=rows, clip_norm=1.0
        )
        learner.train_on_batch(images[:rows], labels[:rows], np.array(weights, "float32"))
        return [np.array(variable) for variable in model.trainable_variables]

    for a, b in zip(trained(4, [1, 1, 1, 1]), trained(6, [1, 1, 1, 1, 0, 0]), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def test_what_a_batch_gave_is_counted_over_its_examples_alone():
    """Of a step and of an evaluation: weight 0 is filling; the last rows would change every
    mean.
    """
    images = keras.Input((2,))
    model = keras.Model(images, keras.layers.Dense(2, name="predictions")(images))
    kernel = np.array([[1.0, 0.0], [0.0, 1.0]], "float32")
    model.set_weights([kernel, np.zeros(2, "float32")])  # logits are the inputs
    rows = np.array([[2.0, 0.0], [0.0, 2.0], [2.0, 0.0], [5.0, 0.0]], "float32")
    labels, weights = np.array([0, 1, 1, 0]), np.array([1, 1, 1, 0], "float32")
    right, wrong = np.log1p(np.exp(-2.0)), np.log1p(np.exp(2.0))
    expected = {"loss": (2 * right + wrong) / 3, "accuracy": 2 / 3}
    # Of the mean: errors of the probabilities times the inputs.
    error = 1 / (1 + np.exp(2.0))
    by_hand = np.array([[-error * 2, error * 2], [error * 2, -error * 2]]) / 3
    by_hand += np.array([[(1 - error) * 2, -(1 - error) * 2], [0, 0]]) / 3
    of_bias = np.array([-error + error + (1 - error), error - error - (1 - error)]) / 3
    expected_norm = np.sqrt((by_hand**2).sum() + (of_bias**2).sum())
    for clip_norm in (None, 0.1):
        model.set_weights([kernel, np.zeros(2, "float32")])
        config = OptimizerConfig(name="sgd", learning_rate=1.0, schedule="constant")
        learner = make_learner(
            model, make_optimizer(config, model, 9), batch_rows=4, clip_norm=clip_norm
        )
        evaluated = learner.evaluate(
            rows, labels, sample_weight=weights, verbose=0, return_dict=True
        )
        assert evaluated == pytest.approx({**expected, "examples": 3}, rel=1e-5)
        logs = learner.train_on_batch(rows, labels, weights, return_dict=True)
        assert {name: float(logs[name]) for name in expected} == pytest.approx(expected, rel=1e-5)
        assert float(logs["gradient_norm"]) == pytest.approx(expected_norm, rel=1e-5)
        moved = kernel - model.get_weights()[0]
        scale = 1.0 if clip_norm is None else clip_norm / expected_norm
        np.testing.assert_allclose(moved, by_hand * scale, rtol=1e-4, atol=1e-6)


ON_JAX = """
import json
import keras, numpy as np
from keras_vit.train.learner import make_learner
from keras_vit.train.optimizers import OptimizerConfig, make_optimizer
images = keras.Input((2,))
model = keras.Model(images, keras.layers.Dense(2, name="predictions")(images))
model.set_weights([np.eye(2), np.zeros(2)])
optimizer = make_optimizer(OptimizerConfig(), model, 9)
learner = make_learner(model, optimizer, batch_rows=4)
rows = np.array([[2.0, 0.0], [0.0, 2.0], [2.0, 0.0], [5.0, 0.0]], "float32")
batch = rows, np.array([0, 1, 1, 0]), np.array([1, 1, 1, 0], "float32")
evaluated = learner.evaluate(*batch[:2], sample_weight=batch[2], verbose=0, return_dict=True)
trained = learner.train_on_batch(*batch, return_dict=True)
names = ("loss", "accuracy", "examples", "gradient_norm")
found = [{name: float(logs[name]) for name in names if name in logs} for logs in (evaluated, trained)]
model.set_weights([np.eye(2), np.zeros(2)])
optimizer = make_optimizer(OptimizerConfig(), model, 9, loss_scaling=True)
learner = make_learner(model, optimizer, batch_rows=4)
wrong = learner.train_on_batch(rows * np.inf, *batch[1:], return_dict=True)
kept = bool((model.get_weights()[0] == np.eye(2)).all())
right = learner.train_on_batch(*batch, return_dict=True)
after = model.get_weights()[0]
learns = bool(np.isfinite(after).all() and (after != np.eye(2)).any())
scales = [float(logs["loss_scale"]) for logs in (wrong, right)]
scaled = {"scales": scales, "kept": kept, "learns": learns}
print(json.dumps([*found, scaled | {"gradient_norm": float(right["gradient_norm"])}]))
"""


def test_on_jax_weight_0_is_filling_and_an_overflow_is_skipped():
    command, env = [sys.executable, "-c", ON_JAX], {**os.environ, "KERAS_BACKEND": "jax"}
    done = warm.run(command, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    evaluated, trained, scaled = json.loads(done.stdout.splitlines()[-1])
    loss = (2 * np.log1p(np.exp(-2.0)) + np.log1p(np.exp(2.0))) / 3
    expected = {"loss": loss, "accuracy": 2 / 3, "examples": 3}
    norm = trained.pop("gradient_norm")
    assert evaluated == pytest.approx(expected, rel=1e-5)
    assert trained == pytest.approx(expected, rel=1e-5)
    assert scaled["kept"] and scaled["learns"]
    assert scaled["scales"][0] == 2 * scaled["scales"][1] > 2
    assert scaled["gradient_norm"] == pytest.approx(norm, rel=1e-5)


def test_a_gradient_that_is_short_enough_is_not_made_longer():
    images = keras.Input((1,))
    model = keras.Model(
        images, keras.layers.Dense(2, name="predictions", kernel_initializer="zeros")(images)
    )
    config = OptimizerConfig(name="sgd", learning_rate=1.0, schedule="constant")
    learner = make_learner(model, make_optimizer(config, model, 9), batch_rows=1, clip_norm=5.0)
    learner.train_on_batch(np.ones((1, 1), "float32"), np.array([0]), np.ones(1, "float32"))
    np.testing.assert_allclose(model.get_weights()[0], [[0.5, -0.5]], rtol=1e-5)


def test_evaluation_draws_nothing():
    images = keras.Input((4,))
    dropped = keras.layers.Dropout(0.5)(images)
    model = keras.Model(
        images, keras.layers.Dense(2, name="predictions", kernel_initializer="ones")(dropped)
    )
    learner = make_learner(model, make_optimizer(OptimizerConfig(), model, 1), batch_rows=8)
    model.get_layer("predictions").kernel.assign(np.array([[1.0, -1.0]] * 4))
    rows, labels = np.ones((8, 4), "float32"), np.zeros(8, int)
    found = learner.evaluate(
        rows, labels, sample_weight=np.ones(8, "float32"), verbose=0, return_dict=True
    )
    # logits 4 and -4 of each
    assert found["loss"] == pytest.approx(np.log1p(np.exp(-8.0)), rel=1e-4)


def test_pixels_are_scaled_as_the_models_expect():
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(2, name="predictions")])
    learner = make_learner(model, make_optimizer(OptimizerConfig(), model, 1), batch_rows=1)
    levels = keras.ops.convert_to_tensor(np.array([0, 51, 255], "uint8"))
    np.testing.assert_allclose(learner.scaled(levels), [-1.0, -0.6, 1.0], atol=1e-6)
    floats = keras.ops.convert_to_tensor(np.array([0.0, 51.0], "float32"))
    assert learner.scaled(floats) is floats


def test_averages_are_lent_and_given_back(tiny_vit):
    model = tiny(tiny_vit)
    optimizer = make_optimizer(OptimizerConfig(average_momentum=0.5, learning_rate=0.1), model, 10)
    learner = make_learner(model, optimizer, batch_rows=16)
    images, labels = data(3)
    for start_row in (0, 16, 32):
        part = slice(start_row, start_row + 16)
        learner.train_on_batch(images[part], labels[part], np.ones(16, "float32"))
    raw = [np.array(v) for v in model.trainable_variables]
    with pytest.raises(RuntimeError), use_averaged_weights(learner):
        inside = [np.array(v) for v in model.trainable_variables]
        raise RuntimeError
    for variable, before, during, average in zip(
        model.trainable_variables, raw, inside, optimizer.averages, strict=True
    ):
        assert (np.array(variable) == before).all()
        assert (during == np.array(average)).all()
    assert max(np.abs(a - b).max() for a, b in zip(raw, inside, strict=True)) > 1e-4


@pytest.mark.slow
def test_accumulation_compiles_under_xla(tiny_vit):
    images, labels = data(1, 8)
    found = []
    for options in ({"accumulation_steps": 2, "jit_compile": True}, {"jit_compile": False}):
        model = tiny(tiny_vit)
        learner = make_learner(
            model, make_optimizer(OptimizerConfig(), model, 10), batch_rows=8, **options
        )
        found.append(
            learner.train_on_batch(images, labels, np.ones(8, "float32"), return_dict=True)
        )
    assert found[0]["loss"] == pytest.approx(found[1]["loss"], rel=1e-5)
    assert found[0]["gradient_norm"] == pytest.approx(found[1]["gradient_norm"], rel=1e-4)


@pytest.mark.parametrize("precision", ["float32", "mixed_bfloat16"])
def test_what_is_frozen_stays_under_remat(tiny_vit, precision: str):
    keras.config.set_dtype_policy(precision)
    model = tiny(tiny_vit)
    optimizer = make_optimizer(
        OptimizerConfig(learning_rate=0.1, frozen=("encoderblock_0/",)), model, 10
    )
    before = [np.array(variable) for variable in model.non_trainable_variables]
    learner = make_learner(model, optimizer, batch_rows=4, remat=True)
    images, labels = data(1, 4)
    for _ in range(2):
        learner.train_on_batch(images, labels, np.ones(4, "float32"))
    assert len(before) > 5
    for variable, value in zip(model.non_trainable_variables, before, strict=True):
        assert (np.array(variable) == value).all() or variable.path.endswith("seed_generator_state")


def test_what_does_not_divide_is_said(tiny_vit):
    model = tiny(tiny_vit)
    optimizer = make_optimizer(OptimizerConfig(), model, 10)
    with pytest.raises(
        ValueError,
        match="is not divisible into 4 replicas with 1 micro-batches each. Pad it to 12",
    ):
        make_learner(model, optimizer, batch_rows=10, num_replicas=4)
    with pytest.raises(ValueError, match="`loss` must be one of softmax, sigmoid"):
        classification("hinge")
    with pytest.raises(ValueError, match="needs logits"):
        make_learner(tiny(tiny_vit, classifier_activation="softmax"), optimizer, batch_rows=8)


@pytest.mark.parametrize("remat", [False, True])
@pytest.mark.parametrize("classifier", ["token", "gap"])
@pytest.mark.sampled(2)
def test_the_last_block_computes_the_class_token_alone(tiny_vit, monkeypatch, classifier, remat):
    """As `fit` of the model itself does: all its tokens are 7 % of the products of ViT_B16."""
    options = {"classes": 5, "classifier": classifier, "classifier_activation": None}
    model = vision_transformer(tiny_vit, keras.Input((16, 16, 3)), **options)
    optimizer = make_optimizer(OptimizerConfig(), model, total_steps=2)
    learner = make_learner(model, optimizer, batch_rows=4, remat=remat)
    alone, decide = {}, TransformerBlock._needs_first_token_only

    def record(block, x, training):
        alone[block.name] = decide(block, x, training)
        return alone[block.name]

    monkeypatch.setattr(TransformerBlock, "_needs_first_token_only", record)
    learner.train_on_batch(np.zeros((4, 16, 16, 3)), np.zeros(4, "int64"), np.ones(4, "float32"))
    assert alone == {"encoderblock_0": False, "encoderblock_1": classifier == "token"}
