"""A model as the bytes of a `.tflite` file: one function for each kind of quantization.

Nothing is judged or written here; see `tflite.py`. Only operations that are built into the runtime
are allowed, so no file needs more than it.

Source: ai.google.dev/edge/litert/conversion (post-training quantization, quantization debugger).
"""

import contextlib
import functools
import io
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

from keras_vit.export.signatures import output_name
from keras_vit.extras import absent
from keras_vit.pixels import pixels_of
from keras_vit.quiet import quiet_conversion

# Of which layer normalization, group normalization, the residual sums and attention are made.
# BATCH_MATMUL is what has no weights: the products of attention.
_KEPT_IN_FLOAT = (
    "SQUARED_DIFFERENCE",
    "MEAN",
    "RSQRT",
    "MUL",
    "SUB",
    "ADD",
    "SOFTMAX",
    "BATCH_MATMUL",
)
_MOST_BYTES = 2**31 - 2**24  # offsets in a file have 32 bits with a sign; the rest is for the graph


@dataclass(frozen=True, kw_only=True, eq=False)
class Graph:
    """A model with all that decides what its graph is.

    Attributes:
        model: Functional, of one input (B, H, W, 3) and one output, in float32.
        image_size: (height, width) in pixels; that of the model unless it takes any.
        fixed_batch: Whether the graph takes one image at a time, rather than any number.
        takes_levels: Whether it takes uint8 from 0 to 255 and scales them, rather than what the
            model takes.
        calibration: (n, H, W, 3), images as the graph takes them, by which the ranges of int8 are
            set.
        folder: Empty; the graph is saved here once, and every conversion starts from it. A folder
            of the caller's, since TensorFlow's temporary folders stay behind when a process is
            killed.
    """

    model: keras.Model
    image_size: tuple[int, int]
    fixed_batch: bool
    takes_levels: bool
    calibration: np.ndarray
    folder: Path

    def converter(self) -> tf.lite.TFLiteConverter:
        """Returns a converter with nothing but built-in operations, one named input and one named
        output.
        """
        converter = tf.lite.TFLiteConverter.from_saved_model(str(self._saved))
        converter.target_spec.supported_ops = [tf.lite.OpsSet.TFLITE_BUILTINS]
        return converter

    @functools.cached_property
    def _saved(self) -> Path:
        name, shape = (
            output_name(self.model),
            (1 if self.fixed_batch else None, *self.image_size, 3),
        )
        pixels = pixels_of(self.model) if self.takes_levels else None

        @tf.function(
            input_signature=[
                tf.TensorSpec(shape, tf.uint8 if self.takes_levels else tf.float32, "images")
            ]
        )
        def answer(images: tf.Tensor) -> dict[str, tf.Tensor]:
            if pixels is not None:
                images = pixels.from_levels(tf.cast(images, tf.float32))
            return {name: self.model(images, training=False)}

        holder = tf.Module()
        # makes them constants
        holder.model_variables = [variable.value for variable in self.model.variables]
        tf.saved_model.save(holder, str(self.folder), signatures={"serving_default": answer})
        return self.folder

    @functools.cached_property
    def float32_bytes(self) -> bytes:
        """Of the file without quantization; another flavour starts from it too."""
        num_bytes = 4 * self.model.count_params()
        if num_bytes > _MOST_BYTES:
            raise ValueError(
                f"the weights take {num_bytes / 2**30:.1f} GiB in float32, and a file holds less "
                f"than 2"
            )
        return self.converter().convert()


def convert(graph: Graph, flavour: str) -> bytes:
    """Returns the content of a `.tflite` file.

    Args:
        graph: The model, and what its graph is to be.
        flavour: A name in `FLAVOURS`.

    Raises:
        ValueError: If there is no such flavour, or no file of the model can be made.
        ImportError: If ai-edge-quantizer is absent and needed.

    Example:
        >>> row = dataclasses.replace(VIT_VARIANTS["ViT_Ti16"], name="ViT_Mine", width=16, depth=1, num_heads=2)
        >>> model = keras_vit.application(row)(weights=None, input_shape=(32, 32, 3), classes=10)
        >>> images = np.zeros((1, 32, 32, 3), "float32")
        >>> kind = dict(image_size=(32, 32), fixed_batch=True, takes_levels=False, calibration=images)
        >>> convert(Graph(model=model, **kind, folder=Path("graph")), "float16")[4:8]
        b'TFL3'
    """
    if flavour not in _CONVERSIONS:
        raise ValueError(f"The flavours are {', '.join(FLAVOURS)}. Received: {flavour!r}.")
    try:
        with quiet_conversion():
            return _CONVERSIONS[flavour](graph)
    except ImportError:
        raise
    except Exception as error:  # the converter raises bare `Exception`s too
        reason = "\n".join(str(error).strip().splitlines()[:10])
        raise ValueError(
            f"No {flavour} file can be made of {graph.model.name}: {reason}"
        ) from error


def _float32(graph: Graph) -> bytes:
    """The model as it is."""
    return graph.float32_bytes


def _float16(graph: Graph) -> bytes:
    """Weights in float16; a processor computes in float32 all the same, a graphics unit may not."""
    converter = graph.converter()
    converter.optimizations = [tf.lite.Optimize.DEFAULT]
    converter.target_spec.supported_types = [tf.float16]
    return converter.convert()


def _dynamic_int8(graph: Graph) -> bytes:
    """Weights in int8; what they are multiplied with is rounded to int8 when it is known, image by
    image.
    """
    converter = graph.converter()
    converter.optimizations = [tf.lite.Optimize.DEFAULT]
    return converter.convert()


def _int8(graph: Graph) -> bytes:
    """Weights and activations in int8, with ranges set beforehand; but norms, sums and attention
    stay in float.

    There the loss sits. Attention over many tokens gives most of them less than the 1/256 that int8
    resolves: of a ViT with 257 tokens, on 1000 to 2000 images of CIFAR-10, 94% of the answers are
    those of the model while softmax or the products of attention are in int8, whatever else is in
    float. It is 97.6% with attention alone in float, and 99.4% with norms and sums too. GELU in
    float changes nothing.
    """
    converter = graph.converter()
    converter.optimizations = [tf.lite.Optimize.DEFAULT]

    def samples() -> Iterator[list[np.ndarray]]:
        return ([image[None]] for image in graph.calibration)

    converter.representative_dataset = samples
    options = tf.lite.experimental.QuantizationDebugOptions(denylisted_ops=list(_KEPT_IN_FLOAT))
    with warnings.catch_warnings():
        # The debugger opens an interpreter, of which no use is made. It is the public way to name
        # operations.
        warnings.filterwarnings(
            "ignore", r"\s*Warning: tf\.lite\.Interpreter is deprecated", UserWarning
        )
        debugger = tf.lite.experimental.QuantizationDebugger(
            converter=converter, debug_dataset=samples, debug_options=options
        )
        return debugger.get_nondebug_quantized_model()


def _weight_only_int8(graph: Graph) -> bytes:
    """Weights in int8, which are made float32 again before they are used: nothing else is
    rounded.
    """
    try:
        from ai_edge_quantizer import quantizer, recipe
    except ImportError as error:
        raise absent("tflite", "weight_only_int8 needs ai-edge-quantizer", error) from error
    silence = io.StringIO()  # it prints, and has bars
    with contextlib.redirect_stdout(silence), contextlib.redirect_stderr(silence):
        made = quantizer.Quantizer(
            bytearray(graph.float32_bytes), recipe.weight_only_wi8_afp32()
        ).quantize()
    return bytes(made.quantized_model)


_CONVERSIONS: Mapping[str, Callable[[Graph], bytes]] = {
    "float32": _float32,
    "float16": _float16,
    "dynamic_int8": _dynamic_int8,
    "int8": _int8,
    "weight_only_int8": _weight_only_int8,
}
FLAVOURS = tuple(_CONVERSIONS)
