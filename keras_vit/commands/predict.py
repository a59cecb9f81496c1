"""`predict`: the most likely classes of photographs."""

import sys

from absl import flags

from keras_vit.commands.command import PROGRAM, Command
from keras_vit.commands.flags import (
    default_weights,
    define_image_size,
    define_model,
    define_pixels,
    define_weights,
    parse_size,
    show_progress,
)
from keras_vit.quiet import quiet_start


def define(values: flags.FlagValues) -> None:
    define_model(values)
    define_weights(values)
    flags.DEFINE_integer(
        "top", 5, "Number of classes to print per photo.", lower_bound=1, flag_values=values
    )
    kinds = "Output format: text; csv, one row per guess; json, one object per photo and line."
    flags.DEFINE_enum("format", "text", ["text", "csv", "json"], kinds, flag_values=values)
    define_image_size(values)
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
        print(pixels.describe_pixels(model, size or model.input_shape[1:3]), file=sys.stderr)
    names = classifier.names_for(model, weights or values.model)

    def progress(done: int | None) -> None:
        show_progress(done, len(photos))

    answers = predict.predict(model, photos, values.top, progress, names, size)
    return 1 if predict.tell(answers, values.format, progress, left_out) else 0


COMMAND = Command(
    run=run,
    define=define,
    arguments="PHOTO...",
    counts=(1, float("inf")),
    summary="print the most likely classes of photographs, from files and folders",
    example=f"{PROGRAM} predict cat.jpg holiday/ --model=ViT_B16 --weights=imagenet",
    details=(
        "Photographs are resized to the model's image size, not cropped. The names of your own "
        "classes are read\n"
        "from classes.txt in the folder of the weights or of model.keras. Scores are softmax "
        "probabilities that sum\n"
        "to 1. If the model ends in sigmoids, each class has a separate probability, and also for "
        "ImageNet-21k, whose\n"
        "21,843 classes overlap. Photos that\n"
        "cannot be read are reported, and the others are still classified. --format=csv has the "
        "columns file, rank,\n"
        "class, score, problem; --format=json writes one object per photo and line, with file, "
        "guesses and problem.\n"
        "Predictions go to stdout, everything else to stderr. Exit codes: 0 if every photo was "
        "read, 1 if a photo or\n"
        "the model cannot be read, 2 for wrong flags."
    ),
)
