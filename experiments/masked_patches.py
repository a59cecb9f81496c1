"""Pre-trains a model without labels, by masked patch prediction.

    python experiments/masked_patches.py --workdir=FOLDER \\
        --config=experiments/configs/masked_patches.py[:ARGUMENT]

If interrupted, rerun the same command to resume. SIGTERM saves a checkpoint and exits with code 75.
"""

import command_line.native_logs

from absl import flags
from command_line import run_recipe

from keras_vit.train import MaskedPatchesConfig, pretrain_masked_patches

flags.adopt_module_key_flags(run_recipe)  # so that --help shows them

if __name__ == "__main__":
    run_recipe.main(MaskedPatchesConfig, pretrain_masked_patches)
