"""Conversion of a model to the bytes of a `.tflite` file, for each kind of quantization.

`tflite.py` judges and writes the files. Only the built-in operations of the runtime are allowed, so
a file needs nothing else.

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

from keras_vit.extras import absent
from keras_vit.pixels import pixels_of
from keras_vit.quiet import quiet_conversion

# The operations of layer normalization, group normalization, residual sums and attention.
# BATCH_MATMUL is used for products without weights, which are those of attention.
_KEPT_IN_FLOAT = (
    "SQUARED_DIFFERENCE",
    "MEAN",
    "RSQRT",
    "MUL",
    "SUB",
    "ADD",
    "SOFTMAX",
    "BATCH_MATMUL",
    "BROADCAST_TO",
)
_MOST_BYTES = 2**31 - 2**24  # offsets are signed 32-bit integers; 16 MiB are left for the graph


@dataclass(frozen=True, kw_only=True, eq=False)
class Graph:
    """A model and the options of its graph.

    Attributes:
        model: Functional model with one input (B, H, W, 3) and one output, in float32.
        output: Name of the output.
        image_size: (height, width) in pixels. Must be the size of the model, unless it takes any.
        fixed_batch: Whether the graph takes batches of one image only.
        takes_levels: Whether the graph takes uint8 from 0 to 255 and scales them, instead of the
            range of the model.
        calibration: (n, H, W, 3) calibration images for int8, as the graph takes them.
        folder: An empty folder. The graph is saved there once, and every conversion reads it. The
            caller removes the folder: TensorFlow's own temporary folders remain if a process is
            killed.
    """

    model: keras.Model
    output: str
    image_size: tuple[int, int]
    fixed_batch: bool
    takes_levels: bool
    calibration: np.ndarray
    folder: Path

    def converter(self) -> tf.lite.TFLiteConverter:
        """Returns a converter with built-in operations, one named input and one named output."""
        converter = tf.lite.TFLiteConverter.from_saved_model(str(self._saved))
        converter.target_spec.supported_ops = [tf.lite.OpsSet.TFLITE_BUILTINS]
        return converter

    @functools.cached_property
    def _saved(self) -> Path:
        shape = (1 if self.fixed_batch else None, *self.image_size, 3)
        pixels = pixels_of(self.model) if self.takes_levels else None

        @tf.function(
            input_signature=[
                tf.TensorSpec(shape, tf.uint8 if self.takes_levels else tf.float32, "images")
            ],
            autograph=False,
        )
        def answer(images: tf.Tensor) -> dict[str, tf.Tensor]:
            if pixels is not None:
                images = pixels.from_levels(tf.cast(images, tf.float32))
            return {self.output: self.model(images, training=False)}

        holder = tf.Module()
        # Makes the variables constants of the graph.
        holder.model_variables = [variable.value for variable in self.model.variables]
        tf.saved_model.save(holder, str(self.folder), signatures={"serving_default": answer})
        return self.folder

    @functools.cached_property
    def float32_bytes(self) -> bytes:
        """The file without quantization, which weight_only_int8 starts from too."""
        num_bytes = 4 * self.model.count_params()
        if num_bytes > _MOST_BYTES:
            raise ValueError(
                f"the weights take {num_bytes / 2**30:.1f} GiB in float32; a file holds less than 2"
            )
        return self.converter().convert()


def convert(graph: Graph, flavour: str) -> bytes:
    """Converts a model to the content of a `.tflite` file.

    Args:
        graph: The model and the options of its graph.
        flavour: A name in `FLAVOURS`.

    Raises:
        ValueError: If the flavour is unknown, or the model cannot be converted.
        ImportError: If ai-edge-quantizer is needed and absent.

    Example:
        >>> row = dataclasses.replace(VIT_VARIANTS["ViT_Ti16"], name="ViT_Mine", width=16, depth=1, num_heads=2)
        >>> model = keras_vit.application(row)(weights=None, input_shape=(32, 32, 3), classes=10)
        >>> images = np.zeros((1, 32, 32, 3), "float32")
        >>> kind = dict(image_size=(32, 32), fixed_batch=True, takes_levels=False, calibration=images)
        >>> convert(Graph(model=model, output="probabilities", **kind, folder=Path("graph")), "float16")[4:8]
        b'TFL3'
    """
    if flavour not in _CONVERSIONS:
        raise ValueError(f"The flavours are {', '.join(FLAVOURS)}. Received: {flavour!r}.")
    try:
        with quiet_conversion():
            return _CONVERSIONS[flavour](graph)
    except ImportError:
        raise
    except Exception as error:  # the converter also raises plain `Exception`s
        reason = "\n".join(str(error).strip().splitlines()[:10])
        raise ValueError(
            f"{graph.model.name} cannot be converted to {flavour}: {reason}"
        ) from error


def _convert_float32(graph: Graph) -> bytes:
    """Converts without quantization."""
    return graph.float32_bytes


def _convert_float16(graph: Graph) -> bytes:
    """Stores weights in float16. CPUs compute in float32; GPUs may compute in float16."""
    converter = graph.converter()
    converter.optimizations = [tf.lite.Optimize.DEFAULT]
    converter.target_spec.supported_types = [tf.float16]
    return converter.convert()


def _convert_dynamic_int8(graph: Graph) -> bytes:
    """Stores weights in int8. Their factors are quantized to int8 at run time, for each image."""
    converter = graph.converter()
    converter.optimizations = [tf.lite.Optimize.DEFAULT]
    return converter.convert()


def _convert_int8(graph: Graph) -> bytes:
    """Stores weights and activations in int8, with ranges set by calibration images.

    Norms, residual sums and attention stay in float, because they cause most of the loss. With many
    tokens, most attention weights are below the resolution of int8, 1/256. Measured for a ViT with
    257 tokens on 1000 to 2000 images of CIFAR-10: top-1 agreement is 94% while softmax or the
    products of attention are in int8, whatever else is in float; 97.6% with only attention in
    float; 99.4% with norms and sums in float too. GELU in float makes no difference. The class token
    is repeated for each image in float: TensorFlow 2.20 computes BROADCAST_TO wrongly in int8, 2.21
    does not.
    """
    converter = graph.converter()
    converter.optimizations = [tf.lite.Optimize.DEFAULT]

    def samples() -> Iterator[list[np.ndarray]]:
        return ([image[None]] for image in graph.calibration)

    converter.representative_dataset = samples
    options = tf.lite.experimental.QuantizationDebugOptions(denylisted_ops=list(_KEPT_IN_FLOAT))
    with warnings.catch_warnings():
        # Only the debugger can exclude operations by name. It creates an interpreter, which is not
        # used here.
        warnings.filterwarnings(
            "ignore", r"\s*Warning: tf\.lite\.Interpreter is deprecated", UserWarning
        )
        debugger = tf.lite.experimental.QuantizationDebugger(
            converter=converter, debug_dataset=samples, debug_options=options
        )
        return debugger.get_nondebug_quantized_model()


def _convert_weight_only_int8(graph: Graph) -> bytes:
    """Stores weights in int8 and converts them to float32 before use. Nothing else is rounded."""
    try:
        from ai_edge_quantizer import quantizer, recipe
    except ImportError as error:
        raise absent("tflite", "weight_only_int8 needs ai-edge-quantizer", error) from error
    silence = io.StringIO()  # the quantizer prints lines and progress bars
    with contextlib.redirect_stdout(silence), contextlib.redirect_stderr(silence):
        made = quantizer.Quantizer(
            bytearray(graph.float32_bytes), recipe.weight_only_wi8_afp32()
        ).quantize()
    return bytes(made.quantized_model)


_CONVERSIONS: Mapping[str, Callable[[Graph], bytes]] = {
    "float32": _convert_float32,
    "float16": _convert_float16,
    "dynamic_int8": _convert_dynamic_int8,
    "int8": _convert_int8,
    "weight_only_int8": _convert_weight_only_int8,
}
FLAVOURS = tuple(_CONVERSIONS)
