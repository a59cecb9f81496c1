"""The commands of `python -m keras_vit`: one module each, with its flags, its help text and the
function it calls.

A command imports what it needs when it runs, so that `--help` and `info` do not wait for Keras.
"""

from keras_vit.commands import (
    analyze,
    evaluate,
    export,
    finetune,
    info,
    predict,
    quickstart,
    verify,
)

COMMANDS = {
    "quickstart": quickstart.COMMAND,
    "info": info.COMMAND,
    "predict": predict.COMMAND,
    "evaluate": evaluate.COMMAND,
    "analyze": analyze.COMMAND,
    "finetune": finetune.COMMAND,
    "export": export.COMMAND,
    "verify": verify.COMMAND,
}
