"""`quickstart`: pre-training, fine-tuning, export and inference of a small model."""

from absl import flags

from keras_vit.commands.command import PROGRAM, Command
from keras_vit.quiet import quiet_start


def define(values: flags.FlagValues) -> None:
    flags.DEFINE_string("output", "quickstart_output", "Output folder.", flag_values=values)


def run(arguments: list[str], values: flags.FlagValues) -> int:
    with quiet_start():
        from keras_vit import quickstart
    quickstart.main(values.output)
    return 0


COMMAND = Command(
    run=run,
    define=define,
    summary="pre-train, fine-tune, export and query a small model in minutes, without a download",
    example=f"{PROGRAM} quickstart",
    details="Pre-trains on fractals, fine-tunes on the digits of scikit-learn, exports the model and queries it.",
)
