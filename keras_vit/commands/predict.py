"""The most likely classes of photographs."""

import sys

from absl import flags

from keras_vit.commands.command import PROGRAM, Command
from keras_vit.commands.flags import (
    NEW_SIZE,
    default_weights,
    define_pixels,
    parse_size,
    show_progress,
)
from keras_vit.quiet import quiet_start


def define(values: flags.FlagValues) -> None:
    flags.DEFINE_string("model", "ViT_B16", f"See `{PROGRAM} info`; or a file model.keras.", flag_values=values)
    flags.DEFINE_string("weights", None, "Tag, file or URL. Default: imagenet, of a name.", flag_values=values)
    flags.DEFINE_integer("top", 5, "Classes to name.", lower_bound=1, flag_values=values)
    kinds = "text; csv: a row for each guess; json: an object on a line for each photo."
    flags.DEFINE_enum("format", "text", ["text", "csv", "json"], kinds, flag_values=values)
    flags.DEFINE_string("image_size", None, f"{NEW_SIZE} Default: that of the weights.", flag_values=values)
    define_pixels(values)


def run(arguments: list[str], values: flags.FlagValues) -> int:
    size = parse_size(values.image_size)
    with quiet_start():
        from keras_vit import keras_file, pixels, predict
        from keras_vit.evaluate import classifier
    photos, left_out = predict.find_photos(arguments)
    is_file = keras_file.is_file(values.model)
    weights = default_weights(values)
    model = classifier.build(values.model, weights, size, values.pixels)
    if is_file:
        print(pixels.described(model, size or model.input_shape[1:3]), file=sys.stderr)
    names = classifier.class_names(weights or values.model)

    def progress(done: int | None) -> None:
        show_progress(done, len(photos))

    answers = predict.predict(model, photos, values.top, progress, names, size)
    return 1 if predict.tell(answers, values.format, progress, left_out) else 0


COMMAND = Command(
    run=run,
    define=define,
    arguments="PHOTO...",
    counts=(1, float("inf")),
    summary="the most likely classes of photographs, from files and folders",
    example=f"{PROGRAM} predict cat.jpg holiday/ --model=ViT_B16 --weights=imagenet",
    details=(
        "Photographs are resized to the model, not cropped. Names of your own classes are read from classes.txt\n"
        "beside the weights or the file model.keras. Scores are probabilities (softmax) that add up to 1;\n"
        "of the 21,843 classes of ImageNet-21k, which overlap, each has a probability of its own (sigmoid).\n"
        "What cannot be read is reported, the others are answered, and the exit code is 1. --format=csv has the\n"
        "columns file, rank, class, score, problem; --format=json has an object on a line for each photo, of\n"
        "file, guesses and problem. Answers go to stdout, all else to stderr. Exit codes: 0 every photo is\n"
        "answered, 1 a photo or the model cannot be read, 2 wrong flags."
    ),
)
