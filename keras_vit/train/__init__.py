"""Pre-training, fine-tuning, masked patch prediction and masked autoencoders, on one device or
several.

Runs resume from their last checkpoint, which stays intact if the process is killed at any moment.
The optimization is the paper's.
"""

from keras_vit.devices import DevicesConfig
from keras_vit.train.config import DataConfig, RunConfig
from keras_vit.train.finetune import Finetuned
from keras_vit.train.finetune_recipe import FinetuneConfig, run_finetuning
from keras_vit.train.loop import EXIT_STOPPED, Diverged, LoopConfig, Stopped
from keras_vit.train.mae import MAEConfig, pretrain_mae
from keras_vit.train.masked_patches import MaskedPatchesConfig, pretrain_masked_patches
from keras_vit.train.optimizers import OptimizerConfig
from keras_vit.train.pretrain import PretrainConfig, pretrain
from keras_vit.train.recipes import load_config, recipe_words, smoke_form

__all__ = [
    "EXIT_STOPPED",
    "DataConfig",
    "DevicesConfig",
    "Diverged",
    "FinetuneConfig",
    "Finetuned",
    "LoopConfig",
    "MAEConfig",
    "MaskedPatchesConfig",
    "OptimizerConfig",
    "PretrainConfig",
    "RunConfig",
    "Stopped",
    "load_config",
    "pretrain",
    "pretrain_mae",
    "pretrain_masked_patches",
    "recipe_words",
    "run_finetuning",
    "smoke_form",
]
