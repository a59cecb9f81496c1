"""The first full run."""

from absl import flags

from keras_vit.commands.command import PROGRAM, Command
from keras_vit.quiet import quiet_start


def define(values: flags.FlagValues) -> None:
    flags.DEFINE_string("output", "quickstart_output", "Folder for what it makes.", flag_values=values)


def run(arguments: list[str], values: flags.FlagValues) -> int:
    with quiet_start():
        from keras_vit import quickstart
    quickstart.main(values.output)
    return 0


COMMAND = Command(
    run=run,
    define=define,
    arguments="",
    counts=(0, 0),
    summary="pre-train, fine-tune, export and ask a small model, in minutes, without a download",
    example=f"{PROGRAM} quickstart",
    details="The whole way from fractals to an answer about a digit of scikit-learn's.",
)
