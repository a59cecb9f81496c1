"""Pre-training of BiT, the ResNets that the paper compares with: SGD with a step schedule.

arXiv:1912.11370 (BiT), section 3.3; arXiv:2010.11929, table 7 and D.1. Words: data set and model.
`imagenet` (90 epochs) trains BiT-S, `imagenet21k` (90 epochs) BiT-M, and `jft` (40 epochs) BiT-L.

    python experiments/pretrain.py --config=experiments/configs/bit_pretrain.py:imagenet,BiT_R50x1 --workdir=runs/bit_s
    python experiments/pretrain.py --config=experiments/configs/bit_pretrain.py:imagenet21k,BiT_R101x3 \\
        --workdir=runs/bit_m --config.run.data.name=/data/imagenet21k               # a folder: train/<class>/*.jpg
    python experiments/pretrain.py --config=experiments/configs/bit_pretrain.py:smoke --workdir=/tmp/smoke

Hardware and time: BiT-L R152x4 9900 TPUv3-core-days (arXiv:2010.11929, table 2); R50x1 on ImageNet
"~32min on v3-128" with a cosine schedule (big_vision, bit_i1k.py). Score: fine-tuned with
`bit_hyperrule.py`, BiT-L R152x4 87.54 +- 0.02 % on ImageNet (the same table). Ours: no such run has
been made.

Choices where the papers are silent:

- Weight decay: BiT's 1e-4 is read as a term of the loss. A momentum of 0.9 accumulates its gradient
  tenfold. The weight decay of this package bypasses the momentum, so it is ten times as large,
  1e-3, multiplied by the learning rate. big_vision's recipes for BiT have the same ratio. It
  applies to kernels only.
- Loss: softmax on ImageNet, sigmoid on the other two (multi-label), as in big_vision.
- Gradient clipping: none. big_vision's recipes clip at 1.
- The paper's own SGD runs on JFT (table 7) take 7 epochs. The steps of their schedule are not
  published, so they are not included.
- Validation sets and sizes of the data sets: as in `pretrain.py`.
"""

from dataclasses import replace
from pathlib import Path

from keras_vit.train import (
    LoopConfig,
    OptimizerConfig,
    PretrainConfig,
    load_config,
    recipe_words,
    smoke_form,
)
from keras_vit.variants import RESNET_VARIANTS

# see `pretrain.py`
NUM_IMAGES = {"imagenet": 1_281_167, "imagenet21k": 14_197_122, "jft": 303_021_387}
BATCH_SIZE = 4096
LEARNING_RATE = 0.03 * BATCH_SIZE / 256
MOMENTUM = 0.9
WEIGHT_DECAY = 1e-4 / (1 - MOMENTUM)
# Epochs, and the epochs after which the learning rate is divided by 10.
LENGTHS = {
    "imagenet": (90, (30, 60, 80)),
    "imagenet21k": (90, (30, 60, 80)),
    "jft": (40, (10, 23, 30, 37)),
}
WORDS = {"data": tuple(LENGTHS), "model": tuple(RESNET_VARIANTS), "size": ("smoke",)}


def get_config(arg: str = "") -> PretrainConfig:
    words = recipe_words(arg, WORDS)
    data = words["data"] or "imagenet"
    epochs, stairs = LENGTHS[data]
    steps, *boundaries = (epoch * NUM_IMAGES[data] // BATCH_SIZE for epoch in (epochs, *stairs))
    of_vits = load_config(f"{Path(__file__).with_name('pretrain.py')}:{data},ViT_B16")
    run = replace(
        of_vits.run,
        loss="softmax" if data == "imagenet" else "sigmoid",
        optimizer=OptimizerConfig(
            name="momentum",
            options={"momentum": MOMENTUM},
            learning_rate=LEARNING_RATE,
            schedule="staircase",
            schedule_options={"boundaries": tuple(boundaries)},
            warmup_steps=5000,
            weight_decay=WEIGHT_DECAY,
            clip_norm=None,
        ),
        loop=LoopConfig(total_steps=steps, evaluate_every=steps // 50),
    )
    config = PretrainConfig(model=words["model"] or "BiT_R50x1", image_size=224, run=run)
    return smoke_form(config) if words["size"] else config
