"""Pre-trains a model without labels, as a masked autoencoder (MAE).

    python experiments/mae.py --workdir=FOLDER --config=experiments/configs/mae.py[:ARGUMENT]

If interrupted, rerun the same command to resume. SIGTERM saves a checkpoint and exits with code 75.
"""

import command_line.native_logs

from absl import flags
from command_line import run_recipe

from keras_vit.train import MAEConfig, pretrain_mae

flags.adopt_module_key_flags(run_recipe)  # so that --help shows them

if __name__ == "__main__":
    run_recipe.main(MAEConfig, pretrain_mae)
