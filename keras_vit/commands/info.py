"""Size, cost and published weights of models."""

from absl import flags

from keras_vit import info as facts
from keras_vit.commands.command import PROGRAM, Command
from keras_vit.commands.flags import NEW_SIZE, parse_size


def define(values: flags.FlagValues) -> None:
    flags.DEFINE_string("image_size", "224", NEW_SIZE, flag_values=values)
    flags.DEFINE_integer("classes", 1000, "Outputs of the head; 0 for no head.", lower_bound=0, flag_values=values)


def run(arguments: list[str], values: flags.FlagValues) -> int:
    size, classes = parse_size(values.image_size), values.classes or None
    print(facts.model_card(arguments[0], size, classes) if arguments else facts.models_table(size, classes))
    return 0


COMMAND = Command(
    run=run,
    define=define,
    arguments="[MODEL]",
    counts=(0, 1),
    summary="size, cost and published weights of a model, or the table of all models",
    example=f"{PROGRAM} info ViT_B16 --image_size=384",
    details="Closed forms and tables: nothing is built or downloaded.",
)
