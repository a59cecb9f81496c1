"""`export`: export to SavedModel, TFLite, ONNX and OpenVINO, and the check of exported files."""

import sys

from absl import flags, logging

from keras_vit.commands.command import PROGRAM, Command
from keras_vit.commands.flags import (
    default_weights,
    define_image_size,
    define_model,
    define_pixels,
    define_weights,
    parse_size,
    require_folders,
)
from keras_vit.quiet import quiet_start


def define(values: flags.FlagValues) -> None:
    flags.DEFINE_string(
        "output",
        None,
        "Folder of the model; the export adds a numbered version to it.",
        flag_values=values,
    )
    flags.DEFINE_string(
        "check",
        None,
        "Exported folder, version or file to check. Exports nothing.",
        flag_values=values,
    )
    define_model(values)
    define_weights(values)
    formats = "saved_model, tflite, onnx, openvino; separate several by commas."
    flags.DEFINE_list("format", "saved_model", formats, flag_values=values)
    images = "Images to compare on: a folder, or tfds:NAME:SPLIT. Default: generated images."
    flags.DEFINE_string("images", None, images, flag_values=values)
    count = "Number of these images. Default: 100; with --check, as many as at export."
    flags.DEFINE_integer("num_images", None, count, lower_bound=1, flag_values=values)
    define_image_size(values)
    define_pixels(values)
    flags.DEFINE_enum(
        "precision",
        "float32",
        ["float32", "bfloat16"],
        "Precision of a SavedModel.",
        flag_values=values,
    )
    flags.DEFINE_bool(
        "attention", False, "Add an attention signature to a SavedModel.", flag_values=values
    )
    flags.DEFINE_bool(
        "any_size", False, "A SavedModel accepts images of any size.", flag_values=values
    )
    flags.DEFINE_integer(
        "top", 5, "Number of classes that a SavedModel returns.", lower_bound=1, flag_values=values
    )
    flags.DEFINE_list(
        "flavours", None, "TFLite flavours, listed above. Default: all.", flag_values=values
    )
    flags.DEFINE_bool(
        "fixed_batch", False, "TFLite accepts a batch of exactly one image.", flag_values=values
    )
    flags.DEFINE_bool(
        "preprocessing",
        False,
        "TFLite accepts pixels from 0 to 255 and scales them.",
        flag_values=values,
    )
    agreement = (
        "Minimum share of images on which a TFLite file must agree with the model to be written."
    )
    flags.DEFINE_float("min_agreement", 0.95, agreement, 0.0, 1.0, flag_values=values)


def run(arguments: list[str], values: flags.FlagValues) -> int:
    if values.check is not None:
        return _check_export(values)
    require_folders(values, "output")
    size = parse_size(values.image_size)
    with quiet_start():
        from keras_vit.export import delivery
    logging.set_verbosity(logging.WARNING)
    names = (
        "precision",
        "attention",
        "any_size",
        "top",
        "fixed_batch",
        "preprocessing",
        "min_agreement",
    )
    options = {name: values[name].value for name in names} | (
        {"flavours": values.flavours} if values.flavours else {}
    )
    problems = delivery.deliver(
        values.model,
        values.output,
        delivery.Wanted(formats=values.format, **options),
        weights=default_weights(values),
        images=values.images,
        image_size=size,
        pixels=values.pixels,
        num_images=values.num_images or 100,
    )
    for problem in problems:
        print(problem, file=sys.stderr)
    return 1 if problems else 0


def _check_export(values: flags.FlagValues) -> int:
    with quiet_start():
        from keras_vit.export import acceptance
    logging.set_verbosity(logging.WARNING)
    failed = 0
    for checked in acceptance.check(
        values.check, images=values.images, num_images=values.num_images
    ):
        failed += bool(checked.problem)
        print(checked.text(), flush=True)
    return 1 if failed else 0


COMMAND = Command(
    run=run,
    define=define,
    summary="export a model as a SavedModel, TFLite, ONNX or OpenVINO, and check that it matches",
    example=f"{PROGRAM} export --model=ViT_B16 --format=saved_model,tflite --output=saved_models/vit_b16",
    details=(
        "Each exported file is loaded in a process without Keras and compared with the model on "
        "--images.\n"
        "TensorFlow Serving reads --output/1, --output/2, ...; other formats are written to "
        "folders such as\n"
        "--output/tflite. TFLite flavours: float32, float16, dynamic_int8, int8, "
        "weight_only_int8. --check=FOLDER\n"
        "repeats the comparison later, or on another machine. Files whose outputs differ are "
        "reported and not\n"
        "written; then the exit code is 1, and the other files are written."
    ),
)
