"""A checkpoint against the NumPy reference."""

from absl import flags

from keras_vit.commands.command import PROGRAM, Command
from keras_vit.quiet import quiet_start


def define(values: flags.FlagValues) -> None:
    flags.DEFINE_string("model", None, "What the file should be. Needed for a tag.", flag_values=values)


def run(arguments: list[str], values: flags.FlagValues) -> int:
    with quiet_start():
        from keras_vit import verify
    return 0 if verify.verify(arguments[0], values.model) else 1


COMMAND = Command(
    run=run,
    define=define,
    arguments="FILE",
    counts=(1, 1),
    summary="prove that a checkpoint file is whole and that the Keras model computes what it says",
    example=f"{PROGRAM} verify ViT-B_16.npz --model=ViT_B16",
    details=(
        "FILE is a path, a URL, or a tag of the catalog (then with --model). An independent forward pass in NumPy\n"
        "is compared with the Keras model, layer by layer. The exit code is 1 unless the verdict is VERIFIED."
    ),
)
