"""Export to ONNX and OpenVINO with Keras's exporters, judged by running the file.

    PATH/1/model.onnx, or model.xml and model.bin   input `images`, output `logits`; batches of any size
    PATH/1/labels.txt                               class names, one per line
    PATH/1/keras_vit.json                           package, weights, input, differences from the model
    PATH/1/reference.npz                            images and outputs of the model, to check the file without it
    PATH/1/SHA256SUMS                               checksums of all files

An exporter that returns does not prove that its file works: operations that ONNX lacks are written
too, and the file does not load. So each file is loaded by its own runtime, in a process without
Keras, and compared with the model. Files whose outputs differ are not written.

Sources: onnx.ai/onnx/operators (list of operations), docs.openvino.ai, "Precision Control".
"""

import contextlib
import gc
import os
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from keras_vit.data.sources import Source
from keras_vit.export.checksums import write_checksums
from keras_vit.export.examples import Examples, take
from keras_vit.export.metadata import describe, write_facts
from keras_vit.export.reference import write_reference
from keras_vit.export.runner import unreported
from keras_vit.export.subject import Subject, check_float32, subject_of
from keras_vit.export.verdicts import Verdict, judge
from keras_vit.export.versions import new_version
from keras_vit.extras import absent
from keras_vit.quiet import quiet_conversion

_TOLERANCE = 1e-4
_LARGE_OUTPUT = 20.0  # largest usual logit
# A protobuf message is smaller than 2 GiB; 16 MiB are left for the graph.
_ONNX_MOST_BYTES = 2**31 - 2**24
_OPENVINO_FACTS = {
    "compile_with": {"INFERENCE_PRECISION_HINT": "f32"},
    "compile_with_in_words": "By default, OpenVINO computes in bfloat16 if the processor supports it, "
    "and logits differ by 0.01 to 0.05.",
}


def onnx(
    model: keras.Model,
    path: str | os.PathLike,
    *,
    images: Examples | Source | np.ndarray | None = None,
    num_images: int = 32,
    calibration: Examples | None = None,
    class_names: Sequence[str] = (),
    eval_crop: str = "resize",
    image_size: int | tuple[int, int] | None = None,
    identity: Mapping[str, Any] | None = None,
) -> Verdict:
    """Writes a model as `path/<next integer>/model.onnx`, with labels and metadata.

    The input is `images`, (B, H, W, 3) float32 in the range of the model, in batches of any size.
    The output is `logits`; `probabilities` if the model ends in softmax or sigmoid; or `features`
    if it has no head. An ONNX file is smaller than 2 GiB, so ViT_H14 cannot be exported. The
    conversion needs 8 GB of memory for ViT_B16, which has 346 MB.

    Args:
        model: Functional model with one input (B, H, W, 3) and one output, in float32. It is not
            modified.
        path: Folder of all versions.
        images: Images on which the file is judged. Default: generated pictures. See
            `keras_vit.export.examples.take`.
        num_images: Maximum number of these images.
        calibration: Calibration images of an int8 file of the same model. They are recorded, so that
            `export --check` does not judge on them.
        class_names: Names in the order of the classes. Default: ImageNet's if their number matches,
            else numbers.
        eval_crop: Policy by which images are resized, as in `keras_vit.data.transforms.eval_crop`.
        image_size: Side in pixels, or (height, width). Required if the model takes any size; the
            file takes only this one.
        identity: Origin of the weights, for the metadata: tag or file, hash.

    Returns:
        Differences between the file and the model.

    Raises:
        ValueError: If the model or an argument does not fit, or the file cannot be run, or an
            output differs by more than 1e-4. No version is written.
        ImportError: If tf2onnx or onnxruntime is absent.

    Example:
        >>> row = dataclasses.replace(VIT_VARIANTS["ViT_Ti16"], name="ViT_Mine", width=16, depth=1, num_heads=2)
        >>> model = keras_vit.application(row)(weights=None, input_shape=(32, 32, 3), classes=10)
        >>> onnx(model, "mine", class_names=[*"0123456789"]).top1_agreement
        1.0
        >>> sorted(path.name for path in Path("mine/1").iterdir())
        ['SHA256SUMS', 'keras_vit.json', 'labels.txt', 'model.onnx', 'reference.npz']
    """
    _check_installed_for_onnx()
    subject = subject_of(model, image_size, class_names)
    check_float32(model)
    num_bytes = 4 * model.count_params()
    if num_bytes > _ONNX_MOST_BYTES:
        raise ValueError(
            f"The weights of {model.name} take {num_bytes / 2**30:.1f} GiB; an ONNX file is "
            f"smaller than 2. Export it with `openvino` or `saved_model`."
        )
    taken = take(images, subject.image_size, num_images, crop=eval_crop)
    known = {"eval_crop": eval_crop, "identity": identity, "calibration": calibration}
    return _export(subject, Path(path), "model.onnx", _write_onnx, taken, known, {"format": "ONNX"})


def openvino(
    model: keras.Model,
    path: str | os.PathLike,
    *,
    images: Examples | Source | np.ndarray | None = None,
    num_images: int = 32,
    calibration: Examples | None = None,
    class_names: Sequence[str] = (),
    eval_crop: str = "resize",
    image_size: int | tuple[int, int] | None = None,
    identity: Mapping[str, Any] | None = None,
) -> Verdict:
    """Writes a model as `path/<next integer>/model.xml` and `.bin`, with labels and metadata.

    The file is judged in float32. By default, OpenVINO computes in bfloat16 if the processor
    supports it, and logits differ by 0.01 to 0.05. For float32, compile the file with
    `{"INFERENCE_PRECISION_HINT": "f32"}`; `keras_vit.json` records this setting. Input and output
    are those of `onnx`.

    Args:
        model, path, images, num_images, calibration, class_names, eval_crop, image_size, identity:
            As in `onnx`.

    Returns:
        Differences between the file and the model.

    Raises:
        ValueError: As in `onnx`.
        ImportError: If openvino is absent.

    Example:
        >>> row = dataclasses.replace(VIT_VARIANTS["ViT_Ti16"], name="ViT_Mine", width=16, depth=1, num_heads=2)
        >>> model = keras_vit.application(row)(weights=None, input_shape=(32, 32, 3), classes=10)
        >>> openvino(model, "for_openvino").top1_agreement
        1.0
        >>> sorted(path.name for path in Path("for_openvino/1").iterdir())
        ['SHA256SUMS', 'keras_vit.json', 'labels.txt', 'model.bin', 'model.xml', 'reference.npz']
    """
    with unreported():
        _check_installed_for_openvino()
        subject = subject_of(model, image_size, class_names)
        check_float32(model)
        taken = take(images, subject.image_size, num_images, crop=eval_crop)
        known = {"eval_crop": eval_crop, "identity": identity, "calibration": calibration}
        facts = {"format": "OpenVINO", **_OPENVINO_FACTS}
        return _export(subject, Path(path), "model.xml", _write_openvino, taken, known, facts)


# ── shared by both formats ──


_Write = Callable[[keras.Model, Path, list[tf.TensorSpec]], None]


def _export(
    subject: Subject,
    path: Path,
    file_name: str,
    write: _Write,
    examples: Examples,
    known: Mapping[str, Any],
    facts: Mapping[str, Any],
) -> Verdict:
    """Converts, judges and describes a model.

    Args:
        known: Arguments of `describe`.
        facts: Metadata of the format.
    """
    model, output, levels = subject.model, subject.output, examples.pixels()
    expected = subject.answers(levels)
    accepted = _choose_bound(expected)
    # Name the output: tf2onnx keeps the name, and OpenVINO does not add outputs.
    named = keras.Model(model.inputs[0], {output: model.outputs[0]}, name=model.name)
    signature = [tf.TensorSpec((None, *subject.image_size, 3), tf.float32, name="images")]
    with new_version(path) as version:
        with quiet_conversion():
            write(named, version.folder / file_name, signature)
        verdict = judge(
            version.folder / file_name, subject.inputs(levels), expected, labels=examples.labels
        )
        _check_close(verdict, accepted)
        if subject.labels:
            (version.folder / "labels.txt").write_text(
                "\n".join([*subject.labels, ""]), encoding="utf-8"
            )
        numbers = {name: value for name, value in asdict(verdict).items() if name != "version"}
        described = describe(model, accepted={"max_error": accepted}, judged=examples, **known)
        described["input"] |= {"name": "images", "image_size": list(subject.image_size)}
        described["output"] = {"name": output, "shape": [None, *model.outputs[0].shape[1:]]}
        write_reference(version.folder, levels, expected)
        write_facts(version.folder, described | facts | {"parity": numbers})
        write_checksums(version.folder, version.folder)
    return replace(verdict, version=version.path)


def _choose_bound(expected: np.ndarray) -> float:
    """Returns the largest error that rounding explains, relative to the largest output."""
    # Models of this package differ by a few millionths of the largest output, in both formats. The
    # bound is below 1e-4 if all outputs are small, such as probabilities of many classes.
    largest = float(np.abs(expected).max())
    return _TOLERANCE * max(min(1.0, largest), largest / _LARGE_OUTPUT)


def _check_close(verdict: Verdict, accepted: float) -> None:
    if verdict.max_error > accepted:
        raise ValueError(
            f"The outputs of {verdict.name} differ from those of the model by up to "
            f"{verdict.max_error:.2g}; rounding explains {accepted:.2g}. Top-1 agreement is "
            f"{verdict.top1_agreement:.1%} on {verdict.num_images} images. Nothing was written."
        )


# ── ONNX ──


def _check_installed_for_onnx() -> None:
    """Checks for tf2onnx and for the runtime, which runs the file after the conversion."""
    try:
        import onnx  # noqa: F401
        import onnxruntime  # noqa: F401
        import tf2onnx  # noqa: F401
    except ImportError as error:
        raise absent("onnx", "ONNX needs tf2onnx and onnxruntime", error) from error


def _write_onnx(model: keras.Model, path: Path, signature: list[tf.TensorSpec]) -> None:
    with warnings.catch_warnings(), _register_erfc(), _collect_garbage_often():
        # Keras tests whether NumPy still has an attribute that tf2onnx uses.
        warnings.filterwarnings("ignore", r"In the future `np\.object`", FutureWarning)
        model.export(str(path), format="onnx", verbose=False, input_signature=signature)
        _take_means_in_stages(path)


def _take_means_in_stages(path: Path) -> None:
    """Replaces each mean over several axes by successive means over one axis."""
    # ONNX Runtime sums all numbers of a group in one float32. For the 25,000 numbers in the root of
    # a hybrid, the error is 1e-3, and 1e-5 in stages.
    import onnx

    model = onnx.load(path)
    nodes = [stage for node in model.graph.node for stage in _split_into_stages(node, onnx.helper)]
    if len(nodes) > len(model.graph.node):
        del model.graph.node[:]
        model.graph.node.extend(nodes)
        onnx.save(model, path)


def _split_into_stages(node: Any, helper: Any) -> list[Any]:
    known = {attribute.name: helper.get_attribute_value(attribute) for attribute in node.attribute}
    axes = known.get("axes", [])
    if node.op_type != "ReduceMean" or len(axes) < 2 or not known.get("keepdims", 1):
        return [node]
    names = [
        node.input[0],
        *(f"{node.output[0]}/axis_{axis}" for axis in axes[:-1]),
        node.output[0],
    ]
    ends = zip(names[:-1], names[1:], axes, strict=True)
    return [
        helper.make_node("ReduceMean", [start], [end], axes=[axis], keepdims=1)
        for start, end, axis in ends
    ]


@contextlib.contextmanager
def _collect_garbage_often() -> Iterator[None]:
    """Runs the garbage collector often during a conversion."""
    # tf2onnx copies its graph with all weights before each of its forty steps. The copies contain
    # reference cycles, so only the collector frees them. With many live objects it rarely examines
    # old ones, so these are frozen. ViT_B16 takes 8 GB with this function, more than 11 without.
    thresholds, frozen = gc.get_threshold(), gc.get_freeze_count() > 0
    gc.collect()
    gc.freeze()
    # Counts the objects that are not frozen; old ones are examined depending on their number.
    gc.collect()
    gc.set_threshold(min(thresholds[0], 2000), 2, 2)
    try:
        yield
    finally:
        gc.set_threshold(*thresholds)
        gc.unfreeze()
        if frozen:
            gc.freeze()


@contextlib.contextmanager
def _register_erfc() -> Iterator[None]:
    """Registers a converter for Erfc, if tf2onnx has none.

    TensorFlow's exact GELU contains Erfc, which ONNX lacks. tf2onnx 1.17 writes it unchanged.
    """
    from tf2onnx import constants, handler, onnx_opset  # noqa: F401 - the last registers tf2onnx's own converters

    opset = 9  # the first that has Erf
    converters = handler.tf_op.get_opsets()[constants.ONNX_DOMAIN]
    if any("Erfc" in of_opset for of_opset in converters):
        yield
        return
    handler.tf_op("Erfc").register_compat_handler(_convert_erfc, opset)
    try:
        yield
    finally:
        del converters[opset]["Erfc"]


def _convert_erfc(graph: Any, node: Any, **_: Any) -> None:
    """Replaces erfc(x) by 1 - erf(x)."""
    # For large x the difference has few significant digits. The GELU is then close to zero, and is
    # added to much larger numbers, so the result does not lose precision.
    kept = {"shapes": node.output_shapes, "dtypes": node.output_dtypes}
    graph.remove_node(node.name)
    one = graph.make_const(f"{node.name}/one", np.float32(1))
    erf = graph.make_node("Erf", node.input, op_name_scope=node.name, **kept)
    graph.make_node(
        "Sub", [one.output[0], erf.output[0]], name=node.name, outputs=node.output, **kept
    )


# ── OpenVINO ──


def _check_installed_for_openvino() -> None:
    try:
        import openvino  # noqa: F401
    except ImportError as error:
        raise absent("openvino", "OpenVINO is not installed", error) from error


def _write_openvino(model: keras.Model, path: Path, signature: list[tf.TensorSpec]) -> None:
    import openvino as runtime

    draft = path.with_name("draft.xml")
    model.export(str(draft), format="openvino", verbose=False, input_signature=signature)
    graph = runtime.Core().read_model(draft)
    for node in graph.get_ordered_ops():
        if node.get_type_name() == "ReduceMean":
            _take_mean_in_stages(node)
    graph.validate_nodes_and_infer_types()
    runtime.serialize(graph, str(path))
    del graph  # it keeps the file of the draft open
    for file in (draft, draft.with_suffix(".bin")):
        file.unlink()


def _take_mean_in_stages(node: Any) -> None:
    """Replaces the mean of a group normalization by successive means over one axis."""
    # OpenVINO sums all numbers of a group in one float32. For the 25,000 numbers in the root of a
    # hybrid, the error is 1e-3, and 1e-5 in stages. OpenVINO merges consecutive means, so a reshape
    # separates them.
    from openvino import opset13 as operations

    def integers(*values: int) -> Any:
        return operations.constant(np.array(values, np.int64))

    data, axes = node.input_value(0), node.input_value(1).get_node()
    shape = data.get_partial_shape()
    if axes.get_type_name() != "Constant" or np.ravel(axes.get_data()).tolist() != [1, 2, 4]:
        return  # not a group normalization: Keras reduces (B, H, W, groups, channels of a group)
    if shape.rank != 5 or any(shape[axis].is_dynamic for axis in range(1, 5)):
        return
    height, _, groups, channels = (shape[axis].get_length() for axis in range(1, 5))
    columns = operations.reduce_mean(data, integers(2))
    columns = operations.reshape(
        columns, integers(-1, height, groups * channels), special_zero=False
    )
    pixels = operations.reduce_mean(columns, integers(1))
    pixels = operations.reshape(pixels, integers(-1, groups, channels), special_zero=False)
    means = operations.reduce_mean(pixels, integers(2))
    kept = (-1, 1, 1, groups, 1) if node.get_attributes()["keep_dims"] else (-1, groups)
    node.output(0).replace(operations.reshape(means, integers(*kept), special_zero=False).output(0))
