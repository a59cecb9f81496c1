"""`info`: size, cost and published weights of models."""

from absl import flags

from keras_vit import info as facts
from keras_vit import model_card
from keras_vit.commands.command import PROGRAM, Command
from keras_vit.commands.flags import SIZE_FORMS, parse_size


def define(values: flags.FlagValues) -> None:
    flags.DEFINE_string(
        "image_size",
        None,
        f"{SIZE_FORMS} Default: that of the model, and 224 for the table.",
        flag_values=values,
    )
    flags.DEFINE_integer(
        "classes",
        None,
        "Number of classes; 0 for a model without a head. Default: 1000, or the outputs of the "
        "projection of CLIP.",
        lower_bound=0,
        flag_values=values,
    )
    flags.DEFINE_bool(
        "markdown", False, "Print the model card of MODEL as Markdown.", flag_values=values
    )


def run(arguments: list[str], values: flags.FlagValues) -> int:
    size = None if values.image_size is None else parse_size(values.image_size)
    classes = "default" if values.classes is None else values.classes or None
    if values.markdown:
        if not arguments:
            raise flags.ValidationError(
                "--markdown prints the card of one model: name it, as in `info ViT_B16 --markdown`."
            )
        print(model_card.format_model_card(arguments[0], size, classes))
        return 0
    print(
        facts.model_card(arguments[0], size, classes)
        if arguments
        else facts.models_table(size, classes)
    )
    return 0


COMMAND = Command(
    run=run,
    define=define,
    arguments="[MODEL]",
    counts=(0, 1),
    summary="print size, cost and published weights of one model, or a table of all models",
    example=f"{PROGRAM} info ViT_B16 --image_size=384",
    details="Computed from tables and closed-form formulas. Builds and downloads nothing.",
)
