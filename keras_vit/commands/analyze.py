"""A report on what a model looks at."""

import sys

from absl import flags, logging

from keras_vit.commands.command import PROGRAM, Command
from keras_vit.commands.flags import (
    NEW_SIZE,
    default_weights,
    define_pixels,
    parse_size,
    require_folders,
    show_progress,
)
from keras_vit.quiet import quiet_start
from keras_vit.writing import by_reason, one_line


def define(values: flags.FlagValues) -> None:
    flags.DEFINE_string("images", None, "Folder of photographs. Must be given.", flag_values=values)
    flags.DEFINE_string("output", None, "Folder for the report. Must be given.", flag_values=values)
    flags.DEFINE_string("model", "ViT_B16", f"See `{PROGRAM} info`; or a file model.keras.", flag_values=values)
    weights = "Tag, file, URL, or none for random ones. Default: imagenet, of a name."
    flags.DEFINE_string("weights", None, weights, flag_values=values)
    flags.DEFINE_string("image_size", None, f"{NEW_SIZE} Default: that of the weights.", flag_values=values)
    define_pixels(values)
    flags.DEFINE_integer("photos", 8, "How many are drawn; all are counted.", lower_bound=1, flag_values=values)
    batch = "Photos of a step. Default: 16, fewer where there are many patches."
    flags.DEFINE_integer("batch_size", None, batch, lower_bound=1, flag_values=values)


def run(arguments: list[str], values: flags.FlagValues) -> int:
    require_folders(values, "images", "output")
    size = parse_size(values.image_size)
    with quiet_start():
        from keras_vit.analyze import inspection
    logging.set_verbosity(logging.WARNING)
    done = inspection.inspect(
        values.model,
        values.images,
        values.output,
        weights=default_weights(values),
        image_size=size,
        pixels=values.pixels,
        num_shown=values.photos,
        batch_size=values.batch_size,
        progress=show_progress,
    )
    for photo in done.photos:
        if photo.problem:
            print(f"cannot read {one_line(photo.name)}: {one_line(photo.problem)}", file=sys.stderr)
    if done.left_out:
        print(by_reason(done.left_out), file=sys.stderr)
    print(*filter(None, [done.taken, done.report]), sep="\n")
    return 0


COMMAND = Command(
    run=run,
    define=define,
    arguments="",
    counts=(0, 0),
    summary="what a model looks at in your photographs, and what its parts have learned, on one page",
    example=f"{PROGRAM} analyze --images=holiday --output=report --model=ViT_B16 --weights=imagenet",
    details=(
        "report.html in --output shows the attention over some of the photos, how far each head looks, filters,\n"
        "positions, and what the model costs; every number lies beside it as CSV. It needs no network and is one\n"
        "file. What a model does not have, such as the attention of a ResNet, is left out, and the page says so.\n"
        "Photos that cannot be read are named and left out."
    ),
)
