"""Fine-tunes a checkpoint.

    python experiments/finetune.py --config=experiments/configs/RECIPE.py[:ARGUMENT] --workdir=FOLDER

If interrupted, rerun the same command to resume. SIGTERM saves a checkpoint and exits with code 75.
"""

import command_line.native_logs

from absl import flags
from command_line import run_recipe

from keras_vit.train import FinetuneConfig, run_finetuning

flags.adopt_module_key_flags(run_recipe)  # so that --help shows them

if __name__ == "__main__":
    run_recipe.main(FinetuneConfig, run_finetuning)
