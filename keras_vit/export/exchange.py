"""A model as ONNX or OpenVINO: converted by Keras's exporters, judged by running the file.

    PATH/1/model.onnx, or model.xml and model.bin   take `images`, give `logits`; the batch may have any length
    PATH/1/labels.txt                               names of the classes, one a line
    PATH/1/keras_vit.json                           package and weights, what goes in, how far it is from the model
    PATH/1/reference.npz                            images and what the model gave, to check the file without the model
    PATH/1/SHA256SUMS                               checksums of all files

That an exporter returns proves nothing: an operation that ONNX lacks is written all the same, and
the file does not load. So each file is loaded by its own runtime, in a process without Keras, and
compared with the model; if it differs, nothing is written.

Sources: onnx.ai/onnx/operators (which operations there are), docs.openvino.ai, "Precision Control".
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
from keras_vit.export.signatures import output_name
from keras_vit.export.subject import Subject, check_float32, subject_of
from keras_vit.export.verdicts import Verdict, judge
from keras_vit.export.versions import new_version
from keras_vit.extras import absent
from keras_vit.quiet import quiet_conversion

_TOLERANCE = 1e-4
_LARGE_OUTPUT = 20.0  # heads give logits up to here
# one protobuf message holds less than 2 GiB; the rest is for the graph
_ONNX_MOST_BYTES = 2**31 - 2**24
_OPENVINO_FACTS = {
    "compile_with": {"INFERENCE_PRECISION_HINT": "f32"},
    "compile_with_in_words": "Left to itself, OpenVINO computes in bfloat16 where the processor can, and is 0.01 to "
    "0.05 off in a logit.",
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
    """Writes a model as `path/<next integer>/model.onnx`, with its labels and metadata beside it.

    The file takes `images`, (B, H, W, 3) float32 as the model takes them, in batches of any length,
    and gives `logits`, `probabilities` where the model ends in them, or `features` where it has no
    head. It holds less than 2 GiB, so
    ViT_H14 is out of its reach. The conversion needs memory: 8 GB for ViT_B16, of 346 MB.

    Args:
        model: Functional, of one input (B, H, W, 3) and one output, in float32; stays as it is.
        path: Folder of all versions.
        images: On which the file is judged. See `keras_vit.export.examples.take`; default:
            generated ones.
        num_images: On how many of them, at most.
        calibration: Images that set the ranges of an int8 file of the same model; recorded, so that
            `export --check` leaves them out here too.
        class_names: In the order of the classes; default: ImageNet's where their number tells, else
            numbers.
        eval_crop: How images are brought to the size of the model, as in
            `keras_vit.data.transforms.eval_crop`.
        image_size: Side in pixels, or (height, width); needed where the model takes any size: the
            file takes this one.
        identity: What is known of the weights, for the metadata: the tag or file, its hash.

    Returns:
        How far the file is from the model.

    Raises:
        ValueError: If the model or an argument does not fit, or what was written cannot be run, or
            is more than 1e-4 off in an output. Then there is no version.
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
            f"The weights of {model.name} take {num_bytes / 2**30:.1f} GiB, and a file of ONNX "
            f"holds less than 2. "
            "Export it with `openvino` or `saved_model`."
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
    """Writes a model for OpenVINO: `path/<next integer>/model.xml` and `.bin`, with its labels and
    metadata beside it.

    The file is judged in float32. Left to itself, OpenVINO computes in bfloat16 where the processor
    can, and is 0.01 to 0.05 off in a logit; compile it with `{"INFERENCE_PRECISION_HINT": "f32"}`,
    as `keras_vit.json` says too.

    Args:
        model, path, images, num_images, calibration, class_names, eval_crop, image_size, identity:
            As in `onnx`; and so is what the file takes and gives.

    Returns:
        How far the file is from the model.

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


# ── what both do ──


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
    """Writes, runs and describes; `known` is for `describe`, `facts` are those of the format."""
    model, output, levels = subject.model, output_name(subject.model), examples.pixels()
    expected = subject.answers(levels)
    accepted = _accepted(expected)
    # Outputs with a name: tf2onnx keeps it, and OpenVINO adds no outputs of its own making.
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


def _accepted(expected: np.ndarray) -> float:
    """The error that rounding explains: less than 1e-4 where all outputs are small, as
    probabilities of many classes.

    It is a part of the largest output: a few millionths of it among models of this package, in
        either format.
    """
    largest = float(np.abs(expected).max())
    return _TOLERANCE * max(min(1.0, largest), largest / _LARGE_OUTPUT)


def _check_close(verdict: Verdict, accepted: float) -> None:
    if verdict.max_error > accepted:
        raise ValueError(
            f"{verdict.name} differs from the model by up to {verdict.max_error:.2g} in an output, "
            f"and has the same "
            f"highest one for {verdict.top1_agreement:.1%} of {verdict.num_images} images; "
            f"rounding explains "
            f"{accepted:.2g}. Nothing is written."
        )


# ── ONNX ──


def _check_installed_for_onnx() -> None:
    """Known before the conversion, not after it: the file is run when it is written."""
    try:
        import onnx  # noqa: F401
        import onnxruntime  # noqa: F401
        import tf2onnx  # noqa: F401
    except ImportError as error:
        raise absent("onnx", "ONNX needs tf2onnx and onnxruntime", error) from error


def _write_onnx(model: keras.Model, path: Path, signature: list[tf.TensorSpec]) -> None:
    with warnings.catch_warnings(), _erfc_converted(), _garbage_collected():
        # Keras asks whether NumPy has still an attribute that tf2onnx names.
        warnings.filterwarnings("ignore", r"In the future `np\.object`", FutureWarning)
        model.export(str(path), format="onnx", verbose=False, input_signature=signature)
        _take_means_in_stages(path)


def _take_means_in_stages(path: Path) -> None:
    """Rewrites the means of group normalization, over rows, columns and channels, as three means,
    one after the other.

    ONNX Runtime adds up all numbers of a group in one float32, one by one: with the 25,000 of the
    root of a hybrid it is 1e-3 off, in stages 1e-5.
    """
    import onnx

    model = onnx.load(path)
    nodes = [stage for node in model.graph.node for stage in _stages(node, onnx.helper)]
    if len(nodes) > len(model.graph.node):
        del model.graph.node[:]
        model.graph.node.extend(nodes)
        onnx.save(model, path)


def _stages(node: Any, helper: Any) -> list[Any]:
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
def _garbage_collected() -> Iterator[None]:
    """Collects garbage often.

    tf2onnx copies its graph, weights and all, before each of its forty steps. A copy refers to
    itself, so only the collector frees it; and that rarely looks at old objects where as many are
    alive as here, unless they are put aside. With this, ViT_B16 takes 8 GB; without, more than 11.
    """
    thresholds, frozen = gc.get_threshold(), gc.get_freeze_count() > 0
    gc.collect()
    gc.freeze()
    # counts how many objects are not put aside: their number decides when old ones are looked at
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
def _erfc_converted() -> Iterator[None]:
    """Lets tf2onnx convert Erfc, of which TensorFlow makes the exact GELU, where it cannot: 1.17
    writes it as it is.
    """
    from tf2onnx import constants, handler, onnx_opset  # noqa: F401 - the last brings the converters that there are

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
    """erfc(x) = 1 - erf(x). For great x few digits are left, but GELU adds it to what is greater by
    far, or to zero.
    """
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
        raise absent("openvino", "OpenVINO is not there", error) from error


def _write_openvino(model: keras.Model, path: Path, signature: list[tf.TensorSpec]) -> None:
    import openvino as runtime

    draft = path.with_name("draft.xml")
    model.export(str(draft), format="openvino", verbose=False, input_signature=signature)
    graph = runtime.Core().read_model(draft)
    for node in graph.get_ordered_ops():
        if node.get_type_name() == "ReduceMean":
            _in_stages(node)
    graph.validate_nodes_and_infer_types()
    runtime.serialize(graph, str(path))
    del graph  # it reads its weights from the draft
    for file in (draft, draft.with_suffix(".bin")):
        file.unlink()


def _in_stages(node: Any) -> None:
    """Takes the mean of a group normalization along one axis after the other.

    OpenVINO adds up all numbers of a group in one float32, one by one: with the 25,000 of the root
    of a hybrid it is 1e-3 off, in stages 1e-5. It joins means that follow each other directly; so
    each is reshaped before the next.
    """
    from openvino import opset13 as operations

    def integers(*values: int) -> Any:
        return operations.constant(np.array(values, np.int64))

    data, axes = node.input_value(0), node.input_value(1).get_node()
    shape = data.get_partial_shape()
    if axes.get_type_name() != "Constant" or np.ravel(axes.get_data()).tolist() != [1, 2, 4]:
        return  # no group normalization: those of Keras see (B, H, W, groups, channels of a group)
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
