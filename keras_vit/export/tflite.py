"""Export to `.tflite` files of several kinds of quantization, judged by running them.

    PATH/1/float32.tflite, float16.tflite, ...   with labels and metadata, see `tflite_metadata.py`
    PATH/1/keras_vit.json                        the same metadata: package, weights, input
    PATH/1/reference.npz                         images and outputs of the model, to check the files without it
    PATH/1/report.md, report.csv                 differences from the model, size and latency of each file
    PATH/1/SHA256SUMS                            checksums of all files

Files whose outputs differ from those of the model by more than rounding explains are not written.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import keras
import numpy as np
from absl import logging

from keras_vit.data.sources import Source
from keras_vit.export.checksums import write_checksums
from keras_vit.export.examples import Examples, set_aside, take
from keras_vit.export.metadata import describe, write_facts
from keras_vit.export.reference import write_reference
from keras_vit.export.report import write_report
from keras_vit.export.subject import Subject, check_float32, subject_of
from keras_vit.export.tflite_flavours import FLAVOURS, Graph, convert
from keras_vit.export.tflite_metadata import with_metadata
from keras_vit.export.verdicts import Verdict, judge
from keras_vit.export.versions import new_version, temporary_folder
from keras_vit.extras import absent

NUM_CALIBRATION_IMAGES = 100
_MOST_GENERATED = 64
_FEWEST_INT8_IMAGES = 8  # for calibration, and as many others for the judgement
# Largest difference of an output, relative to the largest output (at least 1). Measured on small
# models: 1e-6, 4e-4, 0.01, 0.01 and 0.07. Deeper models differ more; damaged weights differ by more
# than these bounds.
_TOLERANCES = {
    "float32": 1e-3,
    "float16": 0.02,
    "dynamic_int8": 0.2,
    "int8": 0.4,
    "weight_only_int8": 0.2,
}


def tflite(
    model: keras.Model,
    path: str | os.PathLike,
    *,
    flavours: Sequence[str] = FLAVOURS,
    images: Examples | Source | np.ndarray | None = None,
    calibration: Examples | None = None,
    num_images: int = 1000,
    class_names: Sequence[str] = (),
    eval_crop: str = "resize",
    image_size: int | tuple[int, int] | None = None,
    fixed_batch: bool = False,
    preprocessing: bool = False,
    min_agreement: float = 0.95,
    identity: Mapping[str, Any] | None = None,
) -> list[Verdict]:
    """Writes a model as `path/<next integer>/<flavour>.tflite`, with a report.

    The input is `images`. The output is `logits`; `probabilities` if the model ends in softmax or
    sigmoid; or `features` if it has no head. The files need only built-in operations of the runtime.

    Args:
        model: Functional model with one input (B, H, W, 3) and one output, in float32. It is not
            modified.
        path: Folder of all versions.
        flavours: "float32"; "float16": float16 weights; "dynamic_int8": int8 weights, with
            activations quantized at run time; "int8": int8 weights and activations, with ranges set
            by calibration; "weight_only_int8": int8 weights, with activations in float32.
        images: Images on which all flavours are judged, see `keras_vit.export.examples.take`.
            Default: 64 generated pictures, which are weaker evidence than photographs.
        calibration: Calibration images for "int8", none of which may be in `images`. Default: up to
            100 of `images`, at most half, which are then not judged. int8 needs at least 8 images
            for calibration and 8 others for the judgement, and images that differ.
        num_images: Maximum number of images on which the files are judged.
        class_names: Names in the order of the classes. Default: ImageNet's if their number matches,
            else numbers.
        eval_crop: Policy by which images are resized, as in `keras_vit.data.transforms.eval_crop`.
        image_size: Side in pixels, or (height, width). Required if the model takes any size; the
            files take only this one.
        fixed_batch: Writes files for batches of one image. Their graphs are smaller, since they
            compute no shapes.
        preprocessing: Writes files that take uint8 pixels from 0 to 255 and scale them, instead of
            the range of the model.
        min_agreement: Smallest top-1 agreement with which a file is written. Files with errors
            larger than their kind of rounding explains are refused too. 0 writes all files.
        identity: Origin of the weights, for the metadata: tag or file, hash, "licence".

    Returns:
        Differences between each file and the model, in the order of the flavours.

    Raises:
        ValueError: If the model or an argument does not fit; or if a file is refused, or cannot be
            converted or run. In the second case the other files are written, and the message names
            their version. If all files are refused, no version is written.
        ImportError: If ai-edge-litert or ai-edge-quantizer is absent.

    Example:
        >>> row = dataclasses.replace(VIT_VARIANTS["ViT_Ti16"], name="ViT_Mine", width=16, depth=1, num_heads=2)
        >>> model = keras_vit.application(row)(weights=None, input_shape=(32, 32, 3), classes=10)
        >>> [verdict.name for verdict in tflite(model, "mine", flavours=["float16"], num_images=4)]
        ['float16.tflite']
        >>> sorted(path.name for path in keras_vit.export.latest("mine").iterdir() if path.suffix != ".png")
        ['SHA256SUMS', 'float16.tflite', 'keras_vit.json', 'reference.npz', 'report.csv',
        'report.md']
    """
    flavours = _check_flavours(flavours, min_agreement, num_images)
    _check_installed(flavours)
    subject = subject_of(model, image_size, class_names)
    check_float32(model)
    size = subject.image_size
    num_calibration = NUM_CALIBRATION_IMAGES if "int8" in flavours and calibration is None else 0
    most = num_calibration + (min(num_images, _MOST_GENERATED) if images is None else num_images)
    set_apart, judged = set_aside(take(images, size, most, crop=eval_crop), num_calibration)
    calibration = set_apart if calibration is None else calibration
    samples = judged if calibration is None else calibration
    refused = (
        _refuse_weak_evidence(calibration, judged) if "int8" in flavours and min_agreement else {}
    )
    levels = judged.pixels()
    expected = subject.answers(levels)
    inputs, ranges = (
        each if preprocessing else subject.inputs(each) for each in (levels, samples.pixels())
    )
    bounds = {
        name: _TOLERANCES[name] * max(1.0, float(np.abs(expected).max())) for name in flavours
    }
    accepted = {"top1_agreement": min_agreement, "max_error": bounds}
    known = describe(
        model,
        accepted=accepted,
        judged=judged,
        calibration=_choose_recorded(flavours, refused, calibration, judged),
        eval_crop=eval_crop,
        identity=identity,
    )
    doubts = _find_doubts(subject, judged, expected)
    for doubt in doubts:
        logging.warning("%s: %s", model.name, doubt)
    verdicts: list[Verdict] = []
    with temporary_folder("keras_vit_tflite_") as folder, new_version(path) as version:
        graph = Graph(
            model=model,
            output=subject.output,
            image_size=size,
            fixed_batch=fixed_batch,
            takes_levels=preprocessing,
            calibration=ranges,
            folder=folder,
        )
        facts = _describe_graph(graph, known)
        for flavour in [name for name in flavours if name not in refused]:
            file = version.folder / f"{flavour}.tflite"
            try:
                file.write_bytes(
                    with_metadata(
                        convert(graph, flavour), {**facts, "flavour": flavour}, subject.labels
                    )
                )
                verdict = judge(file, inputs, expected, labels=judged.labels)
            except (OSError, ValueError) as error:
                refused[flavour] = str(error).replace(str(version.folder), str(path))
            else:
                verdicts.append(verdict)
                if _is_refused(verdict, min_agreement, bounds[flavour]):
                    refused[flavour] = _describe_verdict(verdict, bounds[flavour])
                    verdicts[-1] = replace(verdict, name=f"{flavour}, refused")
            if flavour in refused:
                file.unlink(missing_ok=True)
        if len(refused) == len(flavours):
            raise ValueError(
                _describe_refusal(model, refused, min_agreement, "Nothing was written.")
            )
        facts["accepted"]["max_error"] = _widen_bounds(bounds, verdicts)
        images_name = "generated pictures" if images is None else judged.name
        title = f"{model.name} as TFLite"
        write_report(version.folder, verdicts, title=title, images_name=images_name, doubts=doubts)
        write_reference(version.folder, levels, expected)
        write_facts(version.folder, facts)
        write_checksums(version.folder, version.folder)
    if refused:
        raise ValueError(
            _describe_refusal(
                model,
                refused,
                min_agreement,
                f"The other files are in {version.path}; report.md compares them.",
            )
        )
    return [replace(verdict, version=version.path) for verdict in verdicts]


# ── checks before the first conversion ──


def _check_flavours(flavours: Sequence[str], min_agreement: float, num_images: int) -> list[str]:
    names = [flavours] if isinstance(flavours, str) else list(flavours)
    unknown = [name for name in names if name not in FLAVOURS]
    if unknown or not names or len(set(names)) < len(names):
        raise ValueError(
            f"`flavours` must be distinct names out of {', '.join(FLAVOURS)}. Received: {flavours}."
        )
    if not 0 <= min_agreement <= 1:
        raise ValueError(f"`min_agreement` must be between 0 and 1. Received: {min_agreement}.")
    if num_images < 1:
        raise ValueError(f"`num_images` must be at least 1. Received: {num_images}.")
    return names


def _check_installed(flavours: Sequence[str]) -> None:
    """Checks for the packages that convert and run the files."""
    try:
        import ai_edge_litert  # noqa: F401
        import flatbuffers  # noqa: F401

        if "weight_only_int8" in flavours:
            import ai_edge_quantizer  # noqa: F401
    except ImportError as error:
        raise absent("tflite", "TFLite needs more packages", error) from error


# ── images and metadata ──


def _choose_recorded(
    flavours: Sequence[str],
    refused: Mapping[str, str],
    calibration: Examples | None,
    judged: Examples,
) -> Examples | None:
    """Returns the calibration images to record, on which `export --check` does not judge."""
    if "int8" not in flavours:
        return None
    # If no images were set aside, only an int8 file that is written has used the judged ones.
    return judged if calibration is None and "int8" not in refused else calibration


def _refuse_weak_evidence(calibration: Examples | None, judged: Examples) -> dict[str, str]:
    """Returns the reason to refuse int8 if these images cannot show that its ranges generalize."""
    # The ranges always fit the images that they were set on.
    counts = [
        0 if examples is None else len(set(examples.fingerprints()))
        for examples in (calibration, judged)
    ]
    if calibration is None or min(counts) < _FEWEST_INT8_IMAGES:
        return {
            "int8": f"it needs at least {_FEWEST_INT8_IMAGES} different images for calibration, and as many others "
            f"for the judgement. Received: {counts[0]} and {counts[1]}"
        }
    if calibration.are_alike() or judged.are_alike():
        return {
            "int8": f"the images ({calibration.name}) are too similar to set ranges for others. Pass photographs"
        }
    return {}


def _find_doubts(subject: Subject, judged: Examples, expected: np.ndarray) -> list[str]:
    """Returns the reasons why agreement on these images is weak evidence."""
    doubts = []
    if len(judged.images) > 1 and judged.are_alike():
        doubts.append(
            "The images are very similar, so agreement on them is weak evidence for other images."
        )
    if len(judged.images) > 1 and subject.labels and len(set(expected.argmax(axis=-1))) == 1:
        doubts.append(
            "The model assigns the same class to all images, so agreement on them is weak evidence "
            "for other images."
        )
    return doubts


def _describe_graph(graph: Graph, known: dict[str, Any]) -> dict[str, Any]:
    taken = {"name": "images", "image_size": list(graph.image_size)}
    if graph.takes_levels:
        taken |= {"dtype": "uint8", "range": [0, 255]}
    batch = 1 if graph.fixed_batch else None
    given = {"name": graph.output, "shape": [batch, *graph.model.outputs[0].shape[1:]]}
    return {
        **known,
        "format": "TFLite",
        "batch": batch,
        "input": {**known["input"], **taken},
        "output": given,
    }


def _widen_bounds(bounds: Mapping[str, float], verdicts: Sequence[Verdict]) -> dict[str, float]:
    """Returns the bounds, widened for files that exceed them and were written on request."""
    # Twice the measured error, since a later check may run on another machine.
    found = {verdict.name: verdict.max_error for verdict in verdicts}
    return {
        name: max(bound, 2 * found.get(f"{name}.tflite", 0.0)) for name, bound in bounds.items()
    }


# ── refusals ──


def _is_refused(verdict: Verdict, min_agreement: float, bound: float) -> bool:
    return min_agreement > 0 and (
        verdict.top1_agreement < min_agreement or verdict.max_error > bound
    )


def _describe_verdict(verdict: Verdict, bound: float) -> str:
    accuracy = "" if verdict.accuracy is None else f", accuracy {verdict.accuracy:.1%}"
    return (
        f"top-1 agreement {verdict.top1_agreement:.1%} on {verdict.num_images} images{accuracy}; "
        f"max error {verdict.max_error:.2g}, of which rounding explains {bound:.2g}; mean error "
        f"{verdict.mean_error:.2g}; {verdict.size_bytes / 1e6:.3g} MB, "
        f"{verdict.latency_ms:.3g} ms"
    )


def _describe_refusal(
    model: keras.Model, refused: Mapping[str, str], min_agreement: float, left: str
) -> str:
    lines = "".join(f"\n- {flavour}: {reason.rstrip('.')}." for flavour, reason in refused.items())
    return (
        f"Files of {model.name} must agree with it on {min_agreement:.1%} of the images. "
        f"Refused:{lines}\n{left} To write every file that runs, pass `min_agreement=0` "
        f"(--min_agreement=0); to omit some, pass `flavours` (--flavours)."
    )
