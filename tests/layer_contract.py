"""What every layer of the package promises, checked by one function."""

import inspect
from collections.abc import Callable

import keras
import numpy as np

POLICIES = ("mixed_bfloat16", "mixed_float16")


def check_layer(
    make: Callable[..., keras.layers.Layer],
    *input_shapes: tuple[int, ...],
    output_shape: tuple[int, ...],
    num_weights: int,
    tmp_path,
) -> None:
    """Builds, runs, trains, serializes and saves the layer that `make(**kwargs)` returns.

    Args:
        make: Passes its keyword arguments on to the layer's constructor.
        input_shapes: With the batch.
        output_shape: Expected, with the batch.
        num_weights: Expected number of trainable weights.
        tmp_path: Where to save.
    """
    rng = np.random.default_rng(0)
    inputs = [rng.standard_normal(shape).astype("float32") for shape in input_shapes]
    layer = make()
    expected = _run(layer, inputs)
    assert expected.shape == output_shape
    assert expected.dtype == np.float32
    assert len(layer.trainable_weights) == num_weights
    assert tuple(layer.compute_output_shape(*input_shapes)) == output_shape
    _randomize(layer, rng)
    expected = _run(layer, inputs)
    _check_config(layer)
    _check_freezing(make, inputs)
    model = _check_graph(layer, inputs, expected)
    _check_saving(model, inputs, expected, tmp_path)
    if keras.backend.backend() == "jax":
        # JAX compiles every operation of every dtype alone: minutes, for what the tests of the
        # models repeat
        return
    for policy in POLICIES:
        _check_policy(make, policy, layer, inputs, expected)
    _check_training(model, layer, inputs, expected)


def _run(layer, inputs):
    return keras.ops.convert_to_numpy(layer(*inputs))


def _randomize(layer, rng) -> None:
    """Off the initial values: zeros would hide a wrong path and stop gradients."""
    for weight in layer.weights:
        weight.assign(0.3 * rng.standard_normal(weight.shape))


def _check_config(layer) -> None:
    config = layer.get_config()
    own = vars(type(layer)).get("__init__")  # absent where a layer takes no arguments of its own
    arguments = set(inspect.signature(own).parameters) - {"self", "kwargs"} if own else set()
    assert set(config) - set(keras.layers.Layer().get_config()) == arguments
    assert type(layer).from_config(config).get_config() == config
    serialized = keras.saving.serialize_keras_object(layer)
    assert serialized["registered_name"] == f"keras_vit>{type(layer).__name__}"


def _check_freezing(make, inputs) -> None:
    """A layer that is frozen before it is built, as Keras does when it loads or clones a model,
    stays frozen whole.
    """
    layer = make(trainable=False)
    layer(*inputs)
    assert [weight.path for weight in layer.weights if weight.trainable] == []
    layer.trainable = True
    assert all(weight.trainable for weight in layer.weights)


def _check_graph(layer, inputs, expected) -> keras.Model:
    symbols = [keras.Input(x.shape[1:]) for x in inputs]
    model = keras.Model(symbols if len(symbols) > 1 else symbols[0], layer(*symbols))
    batch = inputs if len(inputs) > 1 else inputs[0]
    np.testing.assert_allclose(model.predict_on_batch(batch), expected, rtol=1e-5, atol=1e-5)
    return model


def _check_saving(model, inputs, expected, tmp_path) -> None:
    path = tmp_path / "layer.keras"
    model.save(path)
    loaded = keras.saving.load_model(path)
    batch = inputs if len(inputs) > 1 else inputs[0]
    np.testing.assert_allclose(
        keras.ops.convert_to_numpy(loaded(batch)), expected, rtol=1e-5, atol=1e-5
    )


def _check_policy(make, policy: str, layer, inputs, expected) -> None:
    mixed = make(dtype=policy)
    output = mixed(*inputs)
    assert keras.backend.standardize_dtype(output.dtype) == policy.removeprefix("mixed_")
    assert {keras.backend.standardize_dtype(weight.dtype) for weight in mixed.weights} <= {
        "float32"
    }
    for weight, original in zip(mixed.weights, layer.weights, strict=True):
        weight.assign(original)
    output = keras.ops.convert_to_numpy(keras.ops.cast(mixed(*inputs), "float32"))
    # One value may be far off: where a sum cancels, and differently on each processor.
    errors, largest = np.abs(output - expected), np.abs(expected).max()
    assert errors.mean() <= 0.03 * np.abs(expected).mean() and errors.max() <= 0.12 * largest


def _check_training(model, layer, inputs, expected) -> None:
    before = [keras.ops.convert_to_numpy(weight) for weight in layer.trainable_weights]
    if not before:
        return
    model.compile(optimizer=keras.optimizers.SGD(1.0), loss="mse", jit_compile=False)
    rng = np.random.default_rng(1)
    model.train_on_batch(
        inputs if len(inputs) > 1 else inputs[0], rng.standard_normal(expected.shape)
    )
    for weight, old in zip(layer.trainable_weights, before, strict=True):
        # The bias of the keys adds the same to all logits of a query, which softmax ignores: its
        # gradient is zero.
        if weight.path.endswith("key/bias"):
            continue
        assert np.any(keras.ops.convert_to_numpy(weight) != old), (
            f"No gradient reaches {weight.path}."
        )
