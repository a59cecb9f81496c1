"""Training: one `fit` on one device or many, checkpoints that a kill cannot hurt, the paper's optimization."""

from keras_vit.devices import DevicesConfig
from keras_vit.train.config import DataConfig, RunConfig, load_config, recipe_words, smoke_form
from keras_vit.train.finetune import FinetuneConfig, finetune
from keras_vit.train.loop import EXIT_STOPPED, Diverged, LoopConfig, Stopped
from keras_vit.train.masked_patches import MaskedPatchesConfig, pretrain_masked_patches
from keras_vit.train.optimizers import OptimizerConfig
from keras_vit.train.pretrain import PretrainConfig, pretrain
from keras_vit.train.transfer import Finetuned

__all__ = [
    "EXIT_STOPPED",
    "DataConfig",
    "DevicesConfig",
    "Diverged",
    "FinetuneConfig",
    "Finetuned",
    "LoopConfig",
    "MaskedPatchesConfig",
    "OptimizerConfig",
    "PretrainConfig",
    "RunConfig",
    "Stopped",
    "finetune",
    "load_config",
    "pretrain",
    "pretrain_masked_patches",
    "recipe_words",
    "smoke_form",
]
