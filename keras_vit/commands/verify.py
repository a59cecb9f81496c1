"""`verify`: comparison of a checkpoint with the NumPy reference."""

from absl import flags

from keras_vit.commands.command import PROGRAM, Command
from keras_vit.quiet import quiet_start


def define(values: flags.FlagValues) -> None:
    flags.DEFINE_string(
        "model", None, "Model that the file should contain. Required for a tag.", flag_values=values
    )


def run(arguments: list[str], values: flags.FlagValues) -> int:
    with quiet_start():
        from keras_vit import verify
    return 0 if verify.verify(arguments[0], values.model) else 1


COMMAND = Command(
    run=run,
    define=define,
    arguments="FILE",
    counts=(1, 1),
    summary="check that a checkpoint file is intact and that the Keras model reproduces it",
    example=f"{PROGRAM} verify ViT-B_16.npz --model=ViT_B16",
    details=(
        "FILE is a path, a URL, or a tag of the catalog (with --model). The command runs an "
        "independent forward\n"
        "pass in NumPy and compares it with the Keras model, layer by layer. The exit code is 0 if "
        "the verdict is\n"
        "VERIFIED, else 1."
    ),
)
