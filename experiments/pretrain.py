"""Trains a model from scratch: `--config=experiments/configs/<recipe>.py[:argument]
--workdir=FOLDER`.

The same command on the same folder goes on where it stopped. SIGTERM saves and exits with code 75.
"""

import command_line.native_logs

from absl import flags
from command_line import run_recipe

from keras_vit.train import PretrainConfig, pretrain

flags.adopt_module_key_flags(run_recipe)  # so that --help shows them

if __name__ == "__main__":
    run_recipe.main(PretrainConfig, pretrain)
