"""`evaluate`: the accuracy of a classifier on a test set."""

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
        "data",
        None,
        "Image folder with one folder per class, or tfds:NAME:SPLIT. Required.",
        flag_values=values,
    )
    define_model(values)
    define_weights(values)
    flags.DEFINE_string(
        "output", None, "Output folder for a report with tables and plots.", flag_values=values
    )
    flags.DEFINE_string("real", None, "File real.json of ImageNet ReaL.", flag_values=values)
    flags.DEFINE_bool("objectnet", False, "Treat --data as ObjectNet.", flag_values=values)
    define_image_size(values)
    define_pixels(values)
    crops = (
        "How images become square. resize: the whole image; resize_crop: the whole image as a "
        "square, of which the central crop of 7/8; resize_shorter: the central crop of 7/8; "
        "central:SHARE: the central crop of a share of the shorter side, such as central:0.9; "
        "published: as in the published evaluation of the weights."
    )
    flags.DEFINE_string("crop", "resize", crops, flag_values=values)
    batch = "Images per step. Default: 64 at 224 x 224 pixels, more if they are smaller."
    flags.DEFINE_integer("batch_size", None, batch, lower_bound=1, flag_values=values)
    flags.DEFINE_bool(
        "strict", False, "Stop at the first image that cannot be read.", flag_values=values
    )
    kinds = ["auto", "one", "mirrored", "multi_worker", "tpu"]
    flags.DEFINE_enum("devices", "auto", kinds, "Devices to run on.", flag_values=values)
    precisions = ["float32", "mixed_bfloat16", "mixed_float16"]
    flags.DEFINE_enum(
        "precision", "float32", precisions, "Numerical precision.", flag_values=values
    )


def run(arguments: list[str], values: flags.FlagValues) -> int:
    require_folders(values, "data")
    size = parse_size(values.image_size)
    with quiet_start():
        from keras_vit.devices import DevicesConfig
        from keras_vit.evaluate import measure
    logging.set_verbosity(logging.WARNING)
    measure.measure(
        values.model,
        values.data,
        weights=default_weights(values),
        output=values.output,
        real=values.real,
        is_objectnet=values.objectnet,
        image_size=size,
        pixels=values.pixels,
        eval_crop=values.crop,
        batch_size=values.batch_size,
        devices=DevicesConfig(kind=values.devices, precision=values.precision),
        strict=values.strict,
    )
    return 0


COMMAND = Command(
    run=run,
    define=define,
    summary="measure the accuracy of a classifier on a test set; every image counts once",
    example=f"{PROGRAM} evaluate --data=imagenet/val --model=ViT_B16 --weights=imagenet --output=report",
    details=(
        "--data contains one folder of images per class. Their names are matched with classes.txt in "
        "the folder of the\n"
        "weights. Without this file, they may be ImageNet's WordNet ids or the numbers of "
        "ImageNet-v2; other folders are\n"
        "taken in alphabetical order. With --real=real.json the command measures ImageNet ReaL. The "
        "results are followed\n"
        "by the model's published results. Images that cannot be read are listed and counted; with "
        "--strict the first one\n"
        "is an error."
    ),
)
