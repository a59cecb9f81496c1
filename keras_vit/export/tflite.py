"""A model as `.tflite` files: every flavour of quantization, judged by running it, and refused if
it is not the model.

PATH/1/float32.tflite, float16.tflite, ...   with labels and metadata inside, see
`tflite_metadata.py` PATH/1/keras_vit.json                        what is in each file too: package
and weights, what goes in PATH/1/reference.npz                         images and what the model
gave, to check the files without the model PATH/1/report.md, report.csv                 how far each
is from the model, its size and its latency PATH/1/SHA256SUMS                            checksums
of all files
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
from keras_vit.export.signatures import output_name
from keras_vit.export.subject import Subject, check_float32, subject_of
from keras_vit.export.tflite_flavours import FLAVOURS, Graph, convert
from keras_vit.export.tflite_metadata import with_metadata
from keras_vit.export.verdicts import Verdict, judge
from keras_vit.export.versions import new_version, temporary_folder
from keras_vit.extras import absent

NUM_CALIBRATION_IMAGES = 100
_MOST_GENERATED = 64
_FEWEST_INT8_IMAGES = 8  # that set ranges, and as many others that are judged
# Greatest difference of an output, as a part of the greatest output (or of 1 where all are
# smaller). Measured on small models: 1e-6, 4e-4, 0.01, 0.01 and 0.07. Deeper models lose more;
# damaged weights are further off.
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
    """Writes a model as `path/<next integer>/<flavour>.tflite`, with a report on how far each file
    is from it.

    Files take `images` and give `logits`, `probabilities` where the model ends in them, or
    `features` where it has no head. They need no operations but those built into the runtime.

    Args:
        model: Functional, of one input (B, H, W, 3) and one output, in float32; stays as it is.
        path: Folder of all versions.
        flavours: "float32"; "float16" weights; "dynamic_int8", "int8" and "weight_only_int8", of
            which the second sets the ranges of activations beforehand, and the last rounds weights
            alone.
        images: See `keras_vit.export.examples.take`; default: 64 generated pictures, which say less
            than photographs. All flavours are judged on the same ones.
        calibration: Images that set the ranges of "int8", none of which is in `images`. Default: up
            to 100 of `images`, at most half, which are then not judged. int8 needs at least 8 for
            either, and images that differ.
        num_images: On how many the files are judged, at most.
        class_names: In the order of the classes; default: ImageNet's where their number tells, else
            numbers.
        eval_crop: How images are brought to the size of the model, as in
            `keras_vit.data.transforms.eval_crop`.
        image_size: Side in pixels, or (height, width); needed where the model takes any size: the
            files take this one.
        fixed_batch: Files take one image, rather than any number: smaller graphs, without
            arithmetic on shapes.
        preprocessing: Files take uint8 pixels from 0 to 255 and scale them, rather than what the
            model takes.
        min_agreement: A file is refused if its highest output is that of the model for a smaller
            share of the images, or if an output is further off than its kind of rounding explains.
            0 writes all.
        identity: What is known of the weights, for the metadata: the tag or file, its hash, its
            "licence".

    Returns:
        How far each file is from the model, in the order of the flavours.

    Raises:
        ValueError: If the model or an argument does not fit, or a file is refused, or cannot be
            made or run; then the other files are there, and the message names the version. If none
            is left, there is no version.
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
    levels = judged.pixels()
    expected = subject.answers(levels)
    inputs, samples = (
        each if preprocessing else subject.inputs(each) for each in (levels, calibration.pixels())
    )
    bounds = {
        name: _TOLERANCES[name] * max(1.0, float(np.abs(expected).max())) for name in flavours
    }
    accepted = {"top1_agreement": min_agreement, "max_error": bounds}
    known = describe(
        model,
        accepted=accepted,
        judged=judged,
        calibration=calibration if "int8" in flavours else None,
        eval_crop=eval_crop,
        identity=identity,
    )
    doubts = _doubts(subject, judged, expected)
    for doubt in doubts:
        logging.warning("%s: %s", model.name, doubt)
    verdicts: list[Verdict] = []
    refused = _unproven(calibration, judged) if "int8" in flavours and min_agreement else {}
    with temporary_folder("keras_vit_tflite_") as folder, new_version(path) as version:
        graph = Graph(
            model=model,
            image_size=size,
            fixed_batch=fixed_batch,
            takes_levels=preprocessing,
            calibration=samples,
            folder=folder,
        )
        facts = _facts(graph, known)
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
                    refused[flavour] = _words(verdict, bounds[flavour])
                    verdicts[-1] = replace(verdict, name=f"{flavour}, refused")
            if flavour in refused:
                file.unlink(missing_ok=True)
        if len(refused) == len(flavours):
            raise ValueError(_refusal(model, refused, min_agreement, "Nothing is written."))
        facts["accepted"]["max_error"] = _bounds_of_all(bounds, verdicts)
        images_name = "generated pictures" if images is None else judged.name
        title = f"{model.name} as TFLite"
        write_report(version.folder, verdicts, title=title, images_name=images_name, doubts=doubts)
        write_reference(version.folder, levels, expected)
        write_facts(version.folder, facts)
        write_checksums(version.folder, version.folder)
    if refused:
        raise ValueError(
            _refusal(model, refused, min_agreement, f"The others are in {version.path}.")
        )
    return [replace(verdict, version=version.path) for verdict in verdicts]


# ── what is refused before anything is made ──


def _check_flavours(flavours: Sequence[str], min_agreement: float, num_images: int) -> list[str]:
    names = [flavours] if isinstance(flavours, str) else list(flavours)
    unknown = [name for name in names if name not in FLAVOURS]
    if unknown or not names or len(set(names)) < len(names):
        raise ValueError(
            f"`flavours` must be some of {', '.join(FLAVOURS)}, each once. Received: {flavours}."
        )
    if not 0 <= min_agreement <= 1:
        raise ValueError(f"`min_agreement` is a share, from 0 to 1. Received: {min_agreement}.")
    if num_images < 1:
        raise ValueError(f"`num_images` must be at least 1. Received: {num_images}.")
    return names


def _check_installed(flavours: Sequence[str]) -> None:
    """Known before the first conversion, not after the last."""
    try:
        import ai_edge_litert  # noqa: F401
        import flatbuffers  # noqa: F401

        if "weight_only_int8" in flavours:
            import ai_edge_quantizer  # noqa: F401
    except ImportError as error:
        raise absent("tflite", "TFLite needs more packages", error) from error


# ── images and answers ──


def _unproven(calibration: Examples, judged: Examples) -> dict[str, str]:
    """Why nothing can be said of int8: its ranges fit the images that set them, whatever these
    are.
    """
    counts = [len(set(examples.fingerprints())) for examples in (calibration, judged)]
    if min(counts) < _FEWEST_INT8_IMAGES:
        return {
            "int8": f"it needs at least {_FEWEST_INT8_IMAGES} different images that set its ranges, and as many others "
            f"on which it is judged. Received: {counts[0]} and {counts[1]}"
        }
    if calibration.are_alike() or judged.are_alike():
        return {
            "int8": f"{calibration.name} hardly differ, so ranges that they set fit no others. Give photographs"
        }
    return {}


def _doubts(subject: Subject, judged: Examples, expected: np.ndarray) -> list[str]:
    """What makes agreement on these images say little."""
    doubts = []
    if len(judged.images) > 1 and judged.are_alike():
        doubts.append("The images hardly differ, so agreement on them says little about others.")
    if len(judged.images) > 1 and subject.labels and len(set(expected.argmax(axis=-1))) == 1:
        doubts.append(
            "The model gives all images the same class, so agreement on them says little about "
            "others."
        )
    return doubts


def _facts(graph: Graph, known: dict[str, Any]) -> dict[str, Any]:
    taken = {"name": "images", "image_size": list(graph.image_size)}
    if graph.takes_levels:
        taken |= {"dtype": "uint8", "range": [0, 255]}
    batch = 1 if graph.fixed_batch else None
    given = {"name": output_name(graph.model), "shape": [batch, *graph.model.outputs[0].shape[1:]]}
    return {
        **known,
        "format": "TFLite",
        "batch": batch,
        "input": {**known["input"], **taken},
        "output": given,
    }


def _bounds_of_all(bounds: Mapping[str, float], verdicts: Sequence[Verdict]) -> dict[str, float]:
    """The bounds, and twice what was found where a file is further off and was written on
    request.
    """
    found = {verdict.name: verdict.max_error for verdict in verdicts}
    return {
        name: max(bound, 2 * found.get(f"{name}.tflite", 0.0)) for name, bound in bounds.items()
    }


# ── refusals ──


def _is_refused(verdict: Verdict, min_agreement: float, bound: float) -> bool:
    return min_agreement > 0 and (
        verdict.top1_agreement < min_agreement or verdict.max_error > bound
    )


def _words(verdict: Verdict, bound: float) -> str:
    accuracy = "" if verdict.accuracy is None else f", right on {verdict.accuracy:.1%}"
    return (
        f"agrees with the model on {verdict.top1_agreement:.1%} of {verdict.num_images} "
        f"images{accuracy}; errors up to "
        f"{verdict.max_error:.2g}, of which rounding explains {bound:.2g}, "
        f"{verdict.mean_error:.2g} in the mean; "
        f"{verdict.size_bytes / 1e6:.3g} MB, {verdict.latency_ms:.3g} ms"
    )


def _refusal(
    model: keras.Model, refused: Mapping[str, str], min_agreement: float, left: str
) -> str:
    lines = "".join(f"\n- {flavour}: {reason.rstrip('.')}." for flavour, reason in refused.items())
    return (
        f"Files of {model.name} must agree with it on {min_agreement:.1%} of the images. Refused "
        f"are:{lines}\n"
        f"{left} `min_agreement=0` writes all that can be run; `flavours` leaves out what is not "
        f"wanted."
    )
