"""BiT-HyperRule: fine-tuning a ResNet with what the size of the data set says, and nothing to tune.

arXiv:1912.11370 (BiT), section 3.3; arXiv:2010.11929, B.1.1: the paper runs it for its ResNets
beside its own sweep, and reports the better of the two. Words: data set and model.

    python experiments/finetune.py --config=experiments/configs/bit_hyperrule.py:cifar10,BiT_R50x1 --workdir=runs/bit
    python experiments/finetune.py --config=experiments/configs/bit_hyperrule.py:pets,ResNet50x1 --workdir=runs/pets \\
        --config.weights=runs/jft_R50x1/model.npz
    python experiments/finetune.py --config=experiments/configs/bit_hyperrule.py:smoke --workdir=/tmp/smoke2 \\
        --config.weights=/tmp/smoke/model.npz                      # what `bit_pretrain.py:smoke` left

Below 20,000 images 500 steps, below 500,000 10,000, else 20,000; a tenth of the learning rate after
3/10, 6/10 and 9/10 of them (2/5, 3/5, 4/5 of 500); mixup from 20,000 images on. Another data set:
see `keras_vit.train.schedules.bit_hyperrule`. Hardware and time: not in the papers. Score: BiT-L
R152x4 (arXiv:2010.11929, table 2) ImageNet 87.54 +- 0.02, CIFAR-10 99.37 +- 0.06, CIFAR-100 93.51
+- 0.08, Pets 96.62 +- 0.23, Flowers 99.63 +- 0.03 %; its weights are not public. Those of BiT-M
are: after fine-tuning on ImageNet R50x1 80.68, R152x2 85.15 % (a repetition,
github.com/google-research/big_transfer), R152x4 85.39 % (the BiT paper). Ours: no such run has been
made.

What the sources do not agree on, and what is chosen here:

- Crops, as in the BiT paper: 160 pixels to 128 for CIFAR, 448 to 384 for the others, 512 to 480 for
  R152x4. The released code takes 512 to 480 for all models.
- Flips: every other image, by chance. The released code flips all of them, always.
- Mixup mixes with the image before in the batch, and keeps at least half of an image; the released
  code takes the batch backwards, and any share.
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

# Training images, and whether they have fewer than 96 * 96 pixels.
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
