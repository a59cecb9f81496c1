"""BiT-HyperRule: fine-tunes a ResNet with settings derived from the size of the data set.

arXiv:1912.11370 (BiT), section 3.3; arXiv:2010.11929, B.1.1: for its ResNets the paper runs both
this rule and its own sweep, and reports the better result. Words: data set and model.

    python experiments/finetune.py --config=experiments/configs/bit_hyperrule.py:cifar10,BiT_R50x1 --workdir=runs/bit
    python experiments/finetune.py --config=experiments/configs/bit_hyperrule.py:pets,ResNet50x1 --workdir=runs/pets \\
        --config.weights=runs/jft_R50x1/model.npz
    python experiments/finetune.py --config=experiments/configs/bit_hyperrule.py:smoke --workdir=/tmp/smoke2 \\
        --config.weights=/tmp/smoke/model.npz     # written by `bit_pretrain.py:smoke`

The rule sets the number of steps, the steps of the learning-rate schedule, and mixup: see
`keras_vit.train.schedules.bit_hyperrule`, which you can call for another data set.

Hardware and time: not in the papers. Score, in %: BiT-L R152x4, whose weights are not public,
reaches 87.54 +- 0.02 on ImageNet, 99.37 +- 0.06 on CIFAR-10, 93.51 +- 0.08 on CIFAR-100, 96.62 +-
0.23 on Pets and 99.63 +- 0.03 on Flowers (arXiv:2010.11929, table 2). BiT-M, whose weights are
public, reaches on ImageNet: R50x1 80.68, R152x2 85.15 (a reproduction,
github.com/google-research/big_transfer), R152x4 85.39 (the BiT paper). Ours: no such run has been
made.

Choices where the sources differ:

- Crops: as in the BiT paper, from 160 to 128 pixels for CIFAR, from 448 to 384 for the others, and
  from 512 to 480 for R152x4. The released code crops from 512 to 480 for all models.
- Flips: each image with probability 1/2. The released code flips every image.
- Mixup: mixes each image with the previous one in the batch, with a weight of at least 1/2. The
  released code mixes with the reversed batch, with any weight.
"""

from dataclasses import replace
from pathlib import Path

from keras_vit.train import (
    FinetuneConfig,
    LoopConfig,
    OptimizerConfig,
    load_config,
    recipe_words,
    smoke_form,
)
from keras_vit.train.schedules import bit_hyperrule
from keras_vit.variants import RESNET_VARIANTS

# Number of training images, and whether they have fewer than 96 * 96 pixels.
DATA_SETS = {
    "imagenet": (1_281_167, False),
    "cifar100": (50_000, True),
    "cifar10": (50_000, True),
    "pets": (3_680, False),
    "flowers": (1_020, False),
    "vtab": (1_000, False),
}
WORDS = {"data": tuple(DATA_SETS), "model": tuple(RESNET_VARIANTS), "size": ("smoke",)}


def get_config(arg: str = "") -> FinetuneConfig:
    words = recipe_words(arg, WORDS)
    data, model = words["data"] or "cifar10", words["model"] or "BiT_R50x1"
    num_images, is_small = DATA_SETS[data]
    rule = bit_hyperrule(num_images)
    of_table_4 = load_config(f"{Path(__file__).with_name('finetune.py')}:{data},{model}")
    run = replace(
        of_table_4.run,
        data=replace(of_table_4.run.data, crop="resize_crop", mixup_alpha=rule.mixup_alpha),
        optimizer=OptimizerConfig(
            name="momentum",
            options={"momentum": 0.9},
            learning_rate=0.003,
            schedule="staircase",
            schedule_options={"boundaries": rule.boundaries},
            warmup_steps=rule.warmup_steps,
            clip_norm=None,
        ),
        loop=LoopConfig(
            total_steps=rule.total_steps, log_every=10, evaluate_every=rule.total_steps // 5
        ),
    )
    large = 480 if model == "BiT_R152x4" else 384
    config = replace(of_table_4, image_size=128 if is_small else large, run=run)
    return smoke_form(config) if words["size"] else config
