"""The work of `keras-vit verify`: integrity of a checkpoint file, and comparison of two forward
passes.

One pass is in plain NumPy on the arrays of the file (`weights/witness.py`, which shares no code with
the models). The other is the Keras model `keras_vit.<model>(weights=file)`. Their activations on one
image are compared layer by layer.
"""

import contextlib
import dataclasses
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping

import keras
import numpy as np

from keras_vit import applications, cost
from keras_vit.graph import MEAN_OF_HEADS
from keras_vit.options import POOLING_OF, resolve_classifier
from keras_vit.variants import VARIANTS, Classifier, ResNetVariant, ViTVariant
from keras_vit.weights import identity, source, witness

# Largest difference within a layer, relative to the largest value of the layer. Both passes are in
# float32, which rounds to 6e-8, but they sum in different orders, and errors accumulate over the
# layers: 2e-6 was measured at the end of a ViT. Real faults are larger: in ViT-B/16, an epsilon of
# 1e-5 instead of 1e-6 causes 3e-5, and the exact GELU instead of the tanh form 1e-4.
TOLERANCE = 1e-5
# A deep stack of convolutions amplifies rounding beyond this tolerance. If necessary, the
# amplification is measured: the NumPy pass is repeated with the last bit of every weight changed.
# Correct passes differed by up to 7 times that noise.
NOISE_FACTOR = 10
_LARGEST_TOLERANCE = 1e-2

Activations = dict[str, np.ndarray]
Variant = ViTVariant | ResNetVariant
Say = Callable[[str], None]

_TABLE = "Transformer/posembed_input/pos_embedding"
_OTHER_POSITIONS = re.compile(
    r"Transformer/posembed_(?!input/pos_embedding$).+|.*/relative_embedding"
)


def verify(file: str, model: str | None = None, say: Say = print) -> bool:
    """Verifies a checkpoint file, prints a report, and returns whether all checks passed.

    Args:
        file: Path, URL, or a tag of the catalog (which needs `model`).
        model: Name of the expected model. Default: the model is inferred from the shapes.
        say: Function that prints a line of the report. Progress is printed to standard error.

    Raises:
        ValueError: If the file is damaged, or does not contain one complete model.
        OSError: If the file cannot be read or downloaded.

    Example:
        >>> model = keras_vit.ViT_Ti16(weights=None, input_shape=(32, 32, 3), classes=10)
        >>> keras_vit.save_checkpoint(model, "ti16.npz")
        >>> verify("ti16.npz", say=lambda line: None)
        True
    """
    found = identity.examine(file, model)
    path, doubts = found.path, found.doubts
    say(str(path))
    _say_facts(found.facts, say)
    if model not in (None, found.model):
        say(f"FAILED: the file contains {found.model}, not {model}.")
        return False
    subject = _make_subject(file, found)
    _say_facts(_describe_model(subject, found.canonical), say)
    expected = _run_numpy(subject, found.canonical)
    del found  # the Keras model needs the memory
    activations = _run_keras(subject, list(expected))
    _say_facts(
        [("names", "complete: each array has one variable, and each variable has one array")],
        say,
    )
    # In the order of the computation: JAX returns the activations sorted by name.
    errors = {
        name: relative_error(activations[name], expected[name])
        for name in expected
        if name in activations
    }
    tolerances = dict.fromkeys(errors, TOLERANCE)
    if any(error > TOLERANCE for error in errors.values()):
        noise = _measure_rounding_noise(subject, identity.read_canonical(path), expected)
        tolerances = {
            name: min(max(TOLERANCE, NOISE_FACTOR * noise[name]), _LARGEST_TOLERANCE)
            for name in errors
        }
    _say_table(expected, errors, tolerances, say)
    return _say_verdict(errors, tolerances, doubts, say)


def relative_error(values: np.ndarray, expected: np.ndarray) -> float:
    """Returns the largest difference relative to the largest expected value.

    It is infinite if the values cannot be compared.

    Example:
        >>> relative_error(np.array([1.0, 4.5]), np.array([1.0, 5.0]))
        0.1
    """
    if values.size != expected.size:
        return float("inf")
    expected = expected.astype(np.float64)
    difference = np.abs(values.reshape(expected.shape) - expected).max()
    if difference == 0.0:
        return 0.0
    largest = np.abs(expected).max()
    return (
        float(difference / largest) if np.isfinite(difference) and largest > 0.0 else float("inf")
    )


def example_image(height: int, width: int) -> np.ndarray:
    """Returns a fixed image (1, height, width, 3) in [-1, 1]: waves, and noise of all frequencies.

    Example:
        >>> example_image(32, 48).shape
        (1, 32, 48, 3)
    """
    rows, columns = (
        np.linspace(0, 1, height)[:, None, None],
        np.linspace(0, 1, width)[None, :, None],
    )
    # The waves of each channel have another direction, so that no symmetry hides transposed axes.
    waves = np.sin(
        2
        * np.pi
        * (np.array([2, 7, 3]) * rows + np.array([5, 1, 11]) * columns + np.array([0, 0.2, 0.6]))
    )
    noise = np.random.default_rng(0).uniform(-1, 1, waves.shape)
    return (0.7 * waves + 0.3 * noise).astype(np.float32)[None]


# ── the model ──


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class _Subject:
    """The settings that both passes share.

    Attributes:
        model: Name of the model.
        variant: Its row, as the arrays of the file say.
        weights: Value of `weights=`.
        pretrained: Properties of the weights, without the arrays.
        classifier: What the head reads; None for a ResNet.
        classes: Number of classes of the head in the file, or None.
        include_top: Whether the Keras model has a head; heads of zeros are refused.
        image_size: (height, width) of the position table.
    """

    model: str
    variant: Variant
    weights: str
    pretrained: source.Pretrained
    classifier: Classifier | None
    classes: int | None
    include_top: bool
    image_size: tuple[int, int]


def _make_subject(weights: str, found: identity.Identity) -> _Subject:
    origin = source.find(found.model, weights)
    pretrained, variant = source.load(origin), VARIANTS[found.model]
    classifier = None
    if isinstance(variant, ViTVariant):
        variant = source.adapt(variant, pretrained)
        classifier = source.find_classifier(variant, pretrained)
        classifier = classifier or resolve_classifier(variant, None)
    pretrained = dataclasses.replace(pretrained, arrays={})
    head_is_valid = not pretrained.head_is_zero and (origin.row is None or origin.row.head_is_valid)
    kernel = found.canonical.get("head/kernel")
    return _Subject(
        model=found.model,
        variant=variant,
        weights=weights,
        pretrained=pretrained,
        classifier=classifier,
        classes=None if kernel is None else kernel.shape[-1],
        include_top=kernel is not None and head_is_valid,
        image_size=_find_image_size(variant, pretrained, found.canonical),
    )


def _find_image_size(
    variant: Variant, pretrained: source.Pretrained, canonical: Mapping[str, np.ndarray]
) -> tuple[int, int]:
    """Returns the image size of the position tables; 224 x 224 for a ResNet without tables."""
    if isinstance(variant, ResNetVariant):
        return pretrained.image_size or (
            _infer_size_from_tables(canonical) if variant.axial else (224, 224)
        )
    if variant.rotary:
        return pretrained.image_size or (variant.image_size, variant.image_size)
    others = [name for name in canonical if _OTHER_POSITIONS.fullmatch(name)]
    if others or pretrained.grid is None:
        raise ValueError(
            "`verify` supports one learned position table, at the input, for a square or recorded "
            "grid, as in all published files. The file contains "
            f"{' and '.join(sorted(others)[:2]) or 'no such table'}."
        )
    size, stride = pretrained.image_size, variant.stem.total_stride if variant.stem else 1
    if size and tuple(-(-side // stride) / variant.patch_size for side in size) == pretrained.grid:
        return size
    rows, columns = pretrained.grid
    return rows * variant.total_stride, columns * variant.total_stride


def _infer_size_from_tables(canonical: Mapping[str, np.ndarray]) -> tuple[int, int]:
    """Returns the image size of the first tables of an axial ResNet."""
    # They cover the output of the root: 2 L - 1 rows for L cells of 4 pixels.
    spans = (
        len(canonical[f"block1/unit1/{axis}/relative_embedding"]) for axis in ("column", "row")
    )
    height, width = (4 * ((span + 1) // 2) for span in spans)
    return height, width


def _describe_model(
    subject: _Subject, canonical: Mapping[str, np.ndarray]
) -> Iterator[tuple[str, str]]:
    height, width = subject.image_size
    head = "none" if subject.classes is None else f"{subject.classes:,} classes"
    head += ", all zeros: it cannot classify" if subject.pretrained.head_is_zero else ""
    if not subject.classifier or not subject.pretrained.grid:
        yield "image", f"{height} x {width} pixels"
        yield "head", head
        return
    rows, columns = subject.pretrained.grid
    positions = f", {canonical[_TABLE].shape[1]} positions" if _TABLE in canonical else ""
    yield "image", f"{height} x {width} pixels, {rows} x {columns} patches{positions}"
    reads = {
        "token": "the class token",
        "gap": "the mean of the patches",
        "map": "attention pooling",
        "token_gap": "the class token and the mean of the patches",
    }
    yield "head", f"{head}; reads {reads[subject.classifier]}"
    width = subject.pretrained.representation_size
    yield "tanh layer", f"{width} wide, before the head" if width else "none"
    epsilon = subject.pretrained.norm_epsilon or subject.variant.norm_epsilon
    yield "numerics", f"GELU in its {subject.pretrained.gelu} form, layer norm epsilon {epsilon:g}"


# ── the two passes ──


def _measure_rounding_noise(
    subject: _Subject, canonical: Mapping[str, np.ndarray], expected: Activations
) -> dict[str, float]:
    """Returns the change of each layer if every weight is changed by the last bit of a float32."""
    generator, moved = np.random.default_rng(0), {}
    for name, array in canonical.items():
        up = generator.integers(0, 2, array.shape, dtype=np.int8) * np.float32(2)
        moved[name] = array.astype(np.float32) * (1 + (up - 1) * np.float32(2**-23))
    return {
        name: relative_error(values, expected[name])
        for name, values in _run_numpy(subject, moved).items()
    }


def _run_numpy(subject: _Subject, canonical: Mapping[str, np.ndarray]) -> Activations:
    numerics = {}
    if subject.classifier:
        numerics = {
            "gelu": subject.pretrained.gelu,
            "norm_epsilon": subject.pretrained.norm_epsilon,
            "classifier": subject.classifier,
        }
    gmacs = cost.macs(subject.variant, subject.image_size, classes=None) / 1e9
    with _print_time(
        f"{subject.model} at {subject.image_size[0]} x {subject.image_size[1]} in NumPy "
        f"({gmacs:.1f} GMACs)"
    ):
        return witness.forward(
            canonical, example_image(*subject.image_size), subject.variant, **numerics
        )


def _run_keras(subject: _Subject, names: list[str]) -> Activations:
    """Returns the activations of the Keras model, under the names of the NumPy pass."""
    layers = {
        name: _find_layer(name, subject.variant)
        for name in names
        if name != "logits" or subject.include_top
    }
    # On the CPU, because other devices may round the factors of a float32 product to fewer digits.
    with _print_time("the same in Keras, with the model built and restored"), keras.device("cpu:0"):
        model = _build(subject)
        probe = keras.Model(
            model.input, {name: model.get_layer(layer).output for name, layer in layers.items()}
        )
        return probe.predict_on_batch(example_image(*subject.image_size))


def _build(subject: _Subject) -> keras.Model:
    options = {
        "weights": subject.weights,
        "input_shape": (*subject.image_size, 3),
        "classifier_activation": None,
    }
    if subject.include_top:
        options |= {"classes": subject.classes}
    else:
        pooling = POOLING_OF[subject.classifier or "gap"]
        options |= {"include_top": False, "pooling": pooling}
    if subject.classifier:
        options |= {
            "classifier": subject.classifier,
            "representation_size": subject.pretrained.representation_size,
        }
    return getattr(applications, subject.model)(**options)


def _find_layer(name: str, variant: Variant) -> str:
    """Returns the layer of the Keras model whose output is an activation of the NumPy pass."""
    trunk = variant.stem if isinstance(variant, ViTVariant) else variant
    if trunk and re.fullmatch(r"block\d+", name):
        return f"{name}_unit{trunk.units[int(name.removeprefix('block')) - 1]}"
    if name == "pre_logits" and isinstance(variant, ResNetVariant):
        return "avg_pool"
    is_mean = isinstance(variant, ViTVariant) and variant.distilled and variant.distilled_head
    logits = MEAN_OF_HEADS if is_mean else "predictions"
    return {"root": "pool_root", "norm_pre_head": "relu_pre_head", "logits": logits}.get(name, name)


@contextlib.contextmanager
def _print_time(what: str) -> Iterator[None]:
    """Prints the name of a computation and its time to standard error."""
    print(f"computing {what} ...", end="", file=sys.stderr, flush=True)
    start = time.perf_counter()
    try:
        yield
        print(f" {time.perf_counter() - start:.1f} s", end="", file=sys.stderr)
    finally:
        print(file=sys.stderr, flush=True)


# ── the report ──


def _say_facts(facts: Iterable[tuple[str, str]], say: Say) -> None:
    for label, text in facts:
        say(f"  {label:<10}  {text}")


def _say_table(
    expected: Activations, errors: Mapping[str, float], tolerances: Mapping[str, float], say: Say
) -> None:
    say(f"\n  {'layer':<16} {'shape':<20} {'largest value':>13}   relative error   tolerance")
    for name, values in expected.items():
        line = f"  {name:<16} {str(values.shape):<20} {np.abs(values).max():>13.4g}   "
        if name not in errors:
            say(f"{line}not compared: the Keras model has no head")
        else:
            mark = "" if errors[name] <= tolerances[name] else "   differs"
            say(f"{line}{errors[name]:>14.1e}   {tolerances[name]:>9.1e}{mark}")
    if any(tolerance > TOLERANCE for tolerance in tolerances.values()):
        say(
            f"  Tolerances above {TOLERANCE:.1e} are {NOISE_FACTOR} times the effect of changing "
            f"the last bit of every weight."
        )
    say("")


def _say_verdict(
    errors: Mapping[str, float], tolerances: Mapping[str, float], doubts: list[str], say: Say
) -> bool:
    different = [name for name, error in errors.items() if not error <= tolerances[name]]
    if different:
        say(f"FAILED: first layer that differs: {'; '.join([different[0], *doubts])}.")
        return False
    worst = max(errors, key=lambda name: errors[name])
    numbers = (
        f"the Keras model matches the NumPy pass in all {len(errors)} layers (largest relative "
        f"error {errors[worst]:.1e}, in {worst})"
    )
    if doubts:
        say(f"FAILED: {'; '.join(doubts)}; otherwise {numbers}.")
        return False
    say(f"VERIFIED: {numbers}.")
    return True
