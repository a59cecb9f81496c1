"""Fine-tuning on a folder of images."""

import sys

from absl import flags, logging

from keras_vit.commands.command import PROGRAM, Command
from keras_vit.commands.flags import (
    define_pixels,
    require_folders,
)
from keras_vit.quiet import quiet_start


def define(values: flags.FlagValues) -> None:
    flags.DEFINE_string("data", None, "Folder: <class>/*, or train/<class>/* and test/<class>/*.", flag_values=values)
    flags.DEFINE_string("output", None, "Folder for the model and its report.", flag_values=values)
    flags.DEFINE_string("model", "ViT_B16", f"See `{PROGRAM} info`; or a file model.keras.", flag_values=values)
    weights = "Tag of the catalog, file, URL, or none; of a name."
    flags.DEFINE_string("weights", "imagenet21k", weights, flag_values=values)
    define_pixels(values)
    size = "Side in pixels. Default: 384, or that of the weights unless it is 224."
    flags.DEFINE_integer("image_size", None, size, lower_bound=1, flag_values=values)
    steps = "Updates. Default: 500 for fewer than 20,000 images, 10,000 for fewer than 500,000, else 20,000."
    flags.DEFINE_integer("steps", None, steps, lower_bound=1, flag_values=values)
    batch = "Images of an update. Default: 512, or 32 without an accelerator; fewer where there are fewer."
    flags.DEFINE_integer("batch_size", None, batch, lower_bound=1, flag_values=values)
    flags.DEFINE_float("learning_rate", 0.01, "The peak of the schedule.", lower_bound=0.0, flag_values=values)
    flags.DEFINE_integer("seed", 0, "Of order, crops and dropout.", lower_bound=0, flag_values=values)


def run(arguments: list[str], values: flags.FlagValues) -> int:
    require_folders(values, "data", "output")
    with quiet_start():
        from keras_vit import train
        from keras_vit.train import finetune
    logging.set_verbosity(logging.WARNING)
    try:
        done = finetune.finetune(
            values.model,
            values.data,
            values.output,
            weights=None if values.weights.lower() == "none" else values.weights,
            image_size=values.image_size,
            pixels=values.pixels,
            steps=values.steps,
            batch_size=values.batch_size,
            learning_rate=values.learning_rate,
            seed=values.seed,
        )
    except train.Stopped as stopped:
        print(stopped, file=sys.stderr)
        return train.EXIT_STOPPED
    except train.Diverged as diverged:
        raise ValueError(str(diverged)) from diverged
    print(f"{done.accuracy:.2%} of the validation images named correctly. How to use the model: {done.report}")
    return 0


COMMAND = Command(
    run=run,
    define=define,
    arguments="",
    counts=(0, 0),
    summary="train a model to tell the classes of your own images apart",
    example=f"{PROGRAM} finetune --data=flowers --output=flowers_vit --model=ViT_B16",
    details=(
        "--data has one folder of images for each class, of which a tenth is held out to measure on, or has\n"
        "such folders in `train` and in `test`. The defaults are the paper's. report.md in --output explains what\n"
        "came out: the model, its accuracy, its mistakes, and how to use it. The same command goes on where it\n"
        "stopped; SIGTERM and Ctrl-C save the state first (exit code 75)."
    ),
)
