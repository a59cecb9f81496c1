"""`finetune`: fine-tuning on a folder of images."""

import sys

from absl import flags, logging

from keras_vit.commands.command import PROGRAM, Command
from keras_vit.commands.flags import define_model, define_pixels, require_folders
from keras_vit.quiet import quiet_start


def define(values: flags.FlagValues) -> None:
    flags.DEFINE_string(
        "data",
        None,
        "Image folder: <class>/*, or train/<class>/* and test/<class>/*. Required.",
        flag_values=values,
    )
    flags.DEFINE_string(
        "output", None, "Output folder for the model and its report. Required.", flag_values=values
    )
    define_model(values)
    weights = "Weights of a named model: a tag, a file, a URL, or none for random weights."
    flags.DEFINE_string("weights", "imagenet21k", weights, flag_values=values)
    define_pixels(values)
    size = "Side of the square images in pixels. Default: 384, or the size of the weights unless that is 224."
    flags.DEFINE_integer("image_size", None, size, lower_bound=1, flag_values=values)
    steps = "Training steps. Default: 500 below 20,000 images, 10,000 below 500,000, else 20,000."
    flags.DEFINE_integer("steps", None, steps, lower_bound=1, flag_values=values)
    batch = "Images per step. Default: 512, or 32 without an accelerator; never more than there are images."
    flags.DEFINE_integer("batch_size", None, batch, lower_bound=1, flag_values=values)
    flags.DEFINE_float(
        "learning_rate", 0.01, "Peak learning rate.", lower_bound=0.0, flag_values=values
    )
    flags.DEFINE_integer(
        "seed", 0, "Random seed of order, crops and dropout.", lower_bound=0, flag_values=values
    )


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
    print(f"Validation accuracy: {done.accuracy:.2%}. How to use the model: {done.report}")
    return 0


COMMAND = Command(
    run=run,
    define=define,
    summary="fine-tune a model on your own images",
    example=f"{PROGRAM} finetune --data=flowers --output=flowers_vit --model=ViT_B16",
    details=(
        "--data contains one folder of images per class, of which 10 % are held out for "
        "validation. Or it contains\n"
        "such folders in `train` and in `test`. The defaults are the paper's. report.md in "
        "--output describes the\n"
        "result: accuracy, confusion matrix, errors, and how to use the model. If interrupted, "
        "rerun the same command\n"
        "to resume; SIGTERM and Ctrl-C save the state first (exit code 75)."
    ),
)
