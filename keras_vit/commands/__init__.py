"""The commands of `python -m keras_vit`, one module each: flags, help text, function that is called.

A command imports its dependencies when it runs, so that `--help` and `info` do not load Keras.
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
