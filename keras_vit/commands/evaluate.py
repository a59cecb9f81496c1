"""The accuracy of a classifier on a test set."""

from absl import flags, logging

from keras_vit.commands.command import PROGRAM, Command
from keras_vit.commands.flags import NEW_SIZE, default_weights, define_pixels, parse_size, require_folders
from keras_vit.quiet import quiet_start


def define(values: flags.FlagValues) -> None:
    flags.DEFINE_string("data", None, "Folder of images, or tfds:NAME:SPLIT. Must be given.", flag_values=values)
    flags.DEFINE_string("model", "ViT_B16", f"See `{PROGRAM} info`; or a file model.keras.", flag_values=values)
    flags.DEFINE_string("weights", None, "Tag, file or URL. Default: imagenet, of a name.", flag_values=values)
    flags.DEFINE_string("output", None, "Folder for a report with tables and pictures.", flag_values=values)
    flags.DEFINE_string("real", None, "real.json of ImageNet ReaL.", flag_values=values)
    flags.DEFINE_bool("objectnet", False, "The folder is ObjectNet's.", flag_values=values)
    flags.DEFINE_string("image_size", None, f"{NEW_SIZE} Default: that of the weights.", flag_values=values)
    define_pixels(values)
    crops = "resize: the whole image; resize_shorter: the middle."
    flags.DEFINE_enum("crop", "resize", ["resize", "resize_shorter"], crops, flag_values=values)
    batch = "Images of a step. Default: 64 of 224 x 224 pixels, more of smaller ones."
    flags.DEFINE_integer("batch_size", None, batch, lower_bound=1, flag_values=values)
    flags.DEFINE_bool("strict", False, "An image that cannot be read is an error.", flag_values=values)
    kinds = ["auto", "one", "mirrored", "multi_worker", "tpu"]
    flags.DEFINE_enum("devices", "auto", kinds, "Where to compute.", flag_values=values)
    precisions = ["float32", "mixed_bfloat16", "mixed_float16"]
    flags.DEFINE_enum("precision", "float32", precisions, "In which precision.", flag_values=values)


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
    arguments="",
    counts=(0, 0),
    summary="how often a classifier is right on a test set, every image counted once",
    example=f"{PROGRAM} evaluate --data=imagenet/val --model=ViT_B16 --weights=imagenet --output=report",
    details=(
        "--data has one folder of images for each class: ImageNet's WordNet ids, ImageNet-v2's numbers, or the\n"
        "classes in classes.txt beside the weights. With --real=real.json: ImageNet ReaL. Published numbers stand\n"
        "below ours. Images that cannot be read are named and counted, or end it with --strict."
    ),
)
