"""Pre-trains without labels: `--config=experiments/configs/masked_patches.py[:argument]
--workdir=FOLDER`.

The same command on the same folder goes on where it stopped. SIGTERM saves and exits with code 75.
"""

import command_line.native_logs

from absl import flags
from command_line import run_recipe

from keras_vit.train import MaskedPatchesConfig, pretrain_masked_patches

flags.adopt_module_key_flags(run_recipe)  # so that --help shows them

if __name__ == "__main__":
    run_recipe.main(MaskedPatchesConfig, pretrain_masked_patches)
