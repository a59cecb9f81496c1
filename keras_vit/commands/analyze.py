"""`analyze`: a report on attention, filters and positions of a model."""

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
    show_progress,
)
from keras_vit.quiet import quiet_start
from keras_vit.writing import group_by_reason, to_one_line


def define(values: flags.FlagValues) -> None:
    flags.DEFINE_string(
        "images", None, "Folder of photographs, or one photo. Required.", flag_values=values
    )
    flags.DEFINE_string(
        "output", None, "Output folder for the report. Required.", flag_values=values
    )
    define_model(values)
    define_weights(values, more=", or none for random weights")
    define_image_size(values)
    define_pixels(values)
    flags.DEFINE_integer(
        "photos",
        8,
        "Number of photos to draw; the statistics use all of them.",
        lower_bound=1,
        flag_values=values,
    )
    batch = "Photos per step. Default: 16, fewer if there are many patches."
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
            print(
                f"cannot read {to_one_line(photo.name)}: {to_one_line(photo.problem)}",
                file=sys.stderr,
            )
    if done.left_out:
        print(group_by_reason(done.left_out), file=sys.stderr)
    print(*filter(None, [done.taken, done.report]), sep="\n")
    return 0


COMMAND = Command(
    run=run,
    define=define,
    summary="write a report on the attention of a model on your photographs, its filters and positions",
    example=f"{PROGRAM} analyze --images=holiday --output=report --model=ViT_B16 --weights=imagenet",
    details=(
        "report.html in --output shows attention maps of some photos, the mean attention distance "
        "of each head,\n"
        "patch filters, the similarity of position embeddings, and the cost of the model. The page "
        "is one file and\n"
        "needs no network. Rollouts, distances, explained variances, similarities and predictions "
        "are also written\n"
        "as CSV. Sections that do not apply, such as attention of a ResNet, are omitted and listed "
        "with the reason.\n"
        "Photos that cannot be read are skipped and listed."
    ),
)
