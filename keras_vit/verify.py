"""Whether a checkpoint file is what it seems, and whether the Keras model computes what the file
says.

Two passes over one image: plain NumPy from the arrays of the file (`weights/witness.py`, which
shares no code with the models), and the Keras model that a user gets from
`keras_vit.<model>(weights=file)`. They are compared layer by layer.
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
from keras_vit.variants import VARIANTS, VIT_VARIANTS, ResNetVariant, ViTVariant
from keras_vit.weights import identity, source, witness

# Largest difference within a layer, relative to the largest value of the layer. Both passes are in
# float32, which rounds to 6e-8, but they add in different orders and the layers pile it up: 2e-6
# was seen at the end of a ViT. What must not pass is larger: in ViT-B/16 an epsilon of 1e-5 for
# 1e-6 makes 3e-5, the exact GELU for the tanh form 1e-4.
TOLERANCE = 1e-5
# A deep stack of convolutions amplifies rounding beyond that, whoever computes it. How much is
# measured where needed: the NumPy pass is repeated with every weight moved by its last bit. Right
# passes differed by up to 7 times that noise.
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
    """Reports on a checkpoint file, line by line, and returns whether everything is as it should
    be.

    Args:
        file: Path, URL, or a tag of the catalog (which needs `model`).
        model: Name of the model that the file should hold; default: the one that its shapes show.
        say: Takes the lines of the report. What is being computed is told on standard error.

    Raises:
        ValueError: If the file is damaged, or if it does not hold one of the models whole.
        OSError: If the file cannot be had.

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
        say(f"FAILED: the file holds {found.model}, not {model}.")
        return False
    subject = _subject(file, found)
    _say_facts(_model_facts(subject, found.canonical), say)
    expected = _numpy_pass(subject, found.canonical)
    del found  # the Keras model needs the memory
    activations = _keras_pass(subject, list(expected))
    _say_facts(
        [("names", "all accounted for: every array has its variable, every variable its array")],
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
        noise = _rounding_noise(subject, identity.read_canonical(path), expected)
        tolerances = {
            name: min(max(TOLERANCE, NOISE_FACTOR * noise[name]), _LARGEST_TOLERANCE)
            for name in errors
        }
    _say_table(expected, errors, tolerances, say)
    return _say_verdict(errors, tolerances, doubts, say)


def relative_error(values: np.ndarray, expected: np.ndarray) -> float:
    """Returns the largest difference, relative to the largest expected value; infinite where they
    cannot be compared.

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
    """Returns (1, height, width, 3) pixels in [-1, 1], always the same: waves, and some noise for
    every scale.

    Example:
        >>> example_image(32, 48).shape
        (1, 32, 48, 3)
    """
    rows, columns = (
        np.linspace(0, 1, height)[:, None, None],
        np.linspace(0, 1, width)[None, :, None],
    )
    # Another slant for each channel: no symmetry may hide a transposed axis.
    waves = np.sin(
        2
        * np.pi
        * (np.array([2, 7, 3]) * rows + np.array([5, 1, 11]) * columns + np.array([0, 0.2, 0.6]))
    )
    noise = np.random.default_rng(0).uniform(-1, 1, waves.shape)
    return (0.7 * waves + 0.3 * noise).astype(np.float32)[None]


# --- the model
# -------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class _Subject:
    """What both passes must agree on.

    Attributes:
        model: Name of the model.
        weights: What `weights=` takes.
        pretrained: What the front door finds out about the weights; without the arrays.
        classifier: "token", "gap" or "map"; None for a ResNet.
        classes: Of the head in the file, or None.
        include_top: Whether the front door builds the head: it refuses one of zeros.
        image_size: (height, width) that the position table is made for.
    """

    model: str
    weights: str
    pretrained: source.Pretrained
    classifier: str | None
    classes: int | None
    include_top: bool
    image_size: tuple[int, int]

    @property
    def variant(self) -> Variant:
        return VARIANTS[self.model]


def _subject(weights: str, found: identity.Identity) -> _Subject:
    origin, names = source.find(found.model, weights), found.canonical.keys()
    pretrained = dataclasses.replace(source.load(origin), arrays={})
    classifier = "map" if "MAPHead_0/probe" in names else "token" if "cls" in names else "gap"
    head_is_valid = not pretrained.head_is_zero and (origin.row is None or origin.row.head_is_valid)
    return _Subject(
        model=found.model,
        weights=weights,
        pretrained=pretrained,
        classifier=classifier if found.model in VIT_VARIANTS else None,
        classes=found.canonical["head/bias"].size if "head/bias" in names else None,
        include_top="head/bias" in names and head_is_valid,
        image_size=_image_size(VARIANTS[found.model], pretrained, found.canonical),
    )


def _image_size(
    variant: Variant, pretrained: source.Pretrained, canonical: Mapping[str, np.ndarray]
) -> tuple[int, int]:
    """The size that the position tables are made for. A ResNet takes any, but for an axial one."""
    if isinstance(variant, ResNetVariant):
        return pretrained.image_size or (
            _size_of_tables(canonical) if variant.axial else (224, 224)
        )
    others = [name for name in canonical if _OTHER_POSITIONS.fullmatch(name)]
    if others or pretrained.grid is None:
        raise ValueError(
            "`verify` knows one learned position table at the stem, of a square image or with its "
            "grid told, as all "
            f"published files have it. The file holds "
            f"{' and '.join(sorted(others)[:2]) or 'none of this kind'}."
        )
    size, stride = pretrained.image_size, variant.stem.total_stride if variant.stem else 1
    if size and tuple(-(-side // stride) / variant.patch_size for side in size) == pretrained.grid:
        return size
    rows, columns = pretrained.grid
    return rows * variant.total_stride, columns * variant.total_stride


def _size_of_tables(canonical: Mapping[str, np.ndarray]) -> tuple[int, int]:
    """The first tables of an axial ResNet span its root's map: 2 L - 1 rows for L cells of 4
    pixels.
    """
    spans = (
        len(canonical[f"block1/unit1/{axis}/relative_embedding"]) for axis in ("column", "row")
    )
    height, width = (4 * ((span + 1) // 2) for span in spans)
    return height, width


def _model_facts(
    subject: _Subject, canonical: Mapping[str, np.ndarray]
) -> Iterator[tuple[str, str]]:
    height, width = subject.image_size
    head = "none" if subject.classes is None else f"{subject.classes:,} classes"
    head += ", all zeros: it predicts nothing" if subject.pretrained.head_is_zero else ""
    if not subject.classifier or not subject.pretrained.grid:
        yield "image", f"{height} x {width} pixels"
        yield "head", head
        return
    rows, columns = subject.pretrained.grid
    yield (
        "image",
        f"{height} x {width} pixels, {rows} x {columns} patches, {canonical[_TABLE].shape[1]} "
        f"positions",
    )
    reads = {
        "token": "the class token",
        "gap": "the mean of the patches",
        "map": "attention pooling",
    }
    yield "head", f"{head}; reads {reads[subject.classifier]}"
    width = subject.pretrained.representation_size
    yield "tanh layer", f"{width} wide, before the head" if width else "none"
    epsilon = subject.pretrained.norm_epsilon or subject.variant.norm_epsilon
    yield "numerics", f"GELU in its {subject.pretrained.gelu} form, layer norm epsilon {epsilon:g}"


# --- the two passes
# --------------------------------------------------------------------------------------------------


def _rounding_noise(
    subject: _Subject, canonical: Mapping[str, np.ndarray], expected: Activations
) -> dict[str, float]:
    """How far each layer moves when every weight moves up or down by the last bit of a float32."""
    generator, moved = np.random.default_rng(0), {}
    for name, array in canonical.items():
        up = generator.integers(0, 2, array.shape, dtype=np.int8) * np.float32(2)
        moved[name] = array.astype(np.float32) * (1 + (up - 1) * np.float32(2**-23))
    return {
        name: relative_error(values, expected[name])
        for name, values in _numpy_pass(subject, moved).items()
    }


def _numpy_pass(subject: _Subject, canonical: Mapping[str, np.ndarray]) -> Activations:
    numerics = {}
    if subject.classifier:
        numerics = {
            "gelu": subject.pretrained.gelu,
            "norm_epsilon": subject.pretrained.norm_epsilon,
        }
    gmacs = cost.macs(subject.variant, subject.image_size, classes=None) / 1e9
    with _timed(
        f"{subject.model} at {subject.image_size[0]} x {subject.image_size[1]} in NumPy "
        f"({gmacs:.1f} GMACs)"
    ):
        return witness.forward(
            canonical, example_image(*subject.image_size), subject.variant, **numerics
        )


def _keras_pass(subject: _Subject, names: list[str]) -> Activations:
    """Activations of the model that a user gets, under the names of the NumPy pass."""
    layers = {
        name: _layer_of(name, subject.variant)
        for name in names
        if name != "logits" or subject.include_top
    }
    # On the CPU, because other devices may round the factors of a float32 product to fewer digits.
    with _timed("the same in Keras, with the model built and restored"), keras.device("cpu:0"):
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
        pooling = {"token": "token", "gap": "avg", "map": "map", None: "avg"}[subject.classifier]
        options |= {"include_top": False, "pooling": pooling}
    if subject.classifier:
        options |= {
            "classifier": subject.classifier,
            "representation_size": subject.pretrained.representation_size,
        }
    return getattr(applications, subject.model)(**options)


def _layer_of(name: str, variant: Variant) -> str:
    """The layer of a Keras model whose output is an activation of the NumPy pass."""
    trunk = variant.stem if isinstance(variant, ViTVariant) else variant
    if trunk and re.fullmatch(r"block\d+", name):
        return f"{name}_unit{trunk.units[int(name.removeprefix('block')) - 1]}"
    if name == "pre_logits" and isinstance(variant, ResNetVariant):
        return "avg_pool"
    return {"root": "pool_root", "norm_pre_head": "relu_pre_head", "logits": "predictions"}.get(
        name, name
    )


@contextlib.contextmanager
def _timed(what: str) -> Iterator[None]:
    """Tells on standard error what is being computed, and how long it took."""
    print(f"computing {what} ...", end="", file=sys.stderr, flush=True)
    start = time.perf_counter()
    try:
        yield
        print(f" {time.perf_counter() - start:.1f} s", end="", file=sys.stderr)
    finally:
        print(file=sys.stderr, flush=True)


# --- the report
# ------------------------------------------------------------------------------------------------------


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
            say(f"{line}not compared: the front door leaves the head out")
        else:
            mark = "" if errors[name] <= tolerances[name] else "   differs"
            say(f"{line}{errors[name]:>14.1e}   {tolerances[name]:>9.1e}{mark}")
    if any(tolerance > TOLERANCE for tolerance in tolerances.values()):
        say(
            f"  Tolerances above {TOLERANCE:.1e}: {NOISE_FACTOR} times what moving every weight by "
            f"its last bit does."
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
        f"the Keras model equals the NumPy pass in all {len(errors)} layers (largest relative "
        f"error "
        f"{errors[worst]:.1e}, in {worst})"
    )
    if doubts:
        say(f"FAILED: {'; '.join(doubts)}; otherwise {numbers}.")
        return False
    say(f"VERIFIED: {numbers}.")
    return True
