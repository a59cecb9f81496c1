"""A model as a SavedModel, TFLite, ONNX or OpenVINO; and the check of what was exported."""

import sys

from absl import flags, logging

from keras_vit.commands.command import PROGRAM, Command
from keras_vit.commands.flags import (
    NEW_SIZE,
    default_weights,
    define_pixels,
    parse_size,
    require_folders,
)
from keras_vit.quiet import quiet_start


def define(values: flags.FlagValues) -> None:
    flags.DEFINE_string("output", None, "Folder of the model; a version of it is added.", flag_values=values)
    flags.DEFINE_string("check", None, "Folder, version or file to check instead.", flag_values=values)
    flags.DEFINE_string("model", "ViT_B16", f"See `{PROGRAM} info`; or a file model.keras.", flag_values=values)
    flags.DEFINE_string("weights", None, "Tag, file or URL. Default: imagenet, of a name.", flag_values=values)
    formats = "saved_model, tflite, onnx, openvino; several with commas."
    flags.DEFINE_list("format", "saved_model", formats, flag_values=values)
    images = "Folder of photos or of classes, or tfds:NAME:SPLIT. Default: generated pictures."
    flags.DEFINE_string("images", None, images, flag_values=values)
    count = "How many of them. Default: 100; of --check: as many as for the export."
    flags.DEFINE_integer("num_images", None, count, lower_bound=1, flag_values=values)
    flags.DEFINE_string("image_size", None, f"{NEW_SIZE} Default: that of the weights.", flag_values=values)
    define_pixels(values)
    flags.DEFINE_enum("precision", "float32", ["float32", "bfloat16"], "Of a SavedModel.", flag_values=values)
    flags.DEFINE_bool("attention", False, "A SavedModel can be asked for its attention.", flag_values=values)
    flags.DEFINE_bool("any_size", False, "A SavedModel takes images of all sizes.", flag_values=values)
    flags.DEFINE_integer("top", 5, "Classes that a SavedModel names.", lower_bound=1, flag_values=values)
    flags.DEFINE_list("flavours", None, "Of TFLite; see --help. Default: all.", flag_values=values)
    flags.DEFINE_bool("fixed_batch", False, "TFLite takes one image at a time.", flag_values=values)
    flags.DEFINE_bool("preprocessing", False, "TFLite takes pixels from 0 to 255.", flag_values=values)
    agreement = "TFLite files that agree on fewer images are not written."
    flags.DEFINE_float("min_agreement", 0.95, agreement, 0.0, 1.0, flag_values=values)


def run(arguments: list[str], values: flags.FlagValues) -> int:
    if values.check is not None:
        return _check_export(values)
    require_folders(values, "output")
    size = parse_size(values.image_size)
    with quiet_start():
        from keras_vit.export import delivery
    logging.set_verbosity(logging.WARNING)
    names = ("precision", "attention", "any_size", "top", "fixed_batch", "preprocessing", "min_agreement")
    options = {name: values[name].value for name in names} | ({"flavours": values.flavours} if values.flavours else {})
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
    for checked in acceptance.check(values.check, images=values.images, num_images=values.num_images):
        failed += bool(checked.problem)
        print(checked.text(), flush=True)
    return 1 if failed else 0


COMMAND = Command(
    run=run,
    define=define,
    arguments="",
    counts=(0, 0),
    summary="a model as a SavedModel, TFLite, ONNX or OpenVINO, and the proof that the file is the model",
    example=f"{PROGRAM} export --model=ViT_B16 --format=saved_model,tflite --output=saved_models/vit_b16",
    details=(
        "Each file is loaded and run in a process without Keras, and compared with the model on --images.\n"
        "TensorFlow Serving reads --output/1, --output/2 ...; other formats lie in folders beside them. Flavours\n"
        "of TFLite: float32, float16, dynamic_int8, int8, weight_only_int8. --check=FOLDER does the comparison\n"
        "again, later or elsewhere. What fails is named, the rest is written, and the exit code is 1."
    ),
)
