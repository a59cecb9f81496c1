"""Pre-training on drawn fractals and fine-tuning on scikit-learn's digits; needs no other data.

It asks the question of arXiv:2010.11929, section 4.3, on a small scale: does pre-training on other
labelled images help on a small data set? No table of the paper corresponds to it, as the paper's
data sets are large or private. Fractals are from arXiv:2101.08515 and arXiv:2103.13023. Words:
`pretrain` (the default), `finetune` or `scratch`.

    python experiments/pretrain.py --config=experiments/configs/fractals_digits.py:pretrain --workdir=runs/fractals
    python experiments/finetune.py --config=experiments/configs/fractals_digits.py:finetune --workdir=runs/from_fractals
    python experiments/pretrain.py --config=experiments/configs/fractals_digits.py:scratch --workdir=runs/from_scratch
    python experiments/pretrain.py --config=experiments/configs/fractals_digits.py:smoke --workdir=/tmp/smoke
    python experiments/finetune.py --config=experiments/configs/fractals_digits.py:smoke,finetune --workdir=/tmp/smoke2

`finetune` starts from runs/fractals/model.npz, `scratch` from random weights. Both train on the
same batches of the same 1437 digits for the same number of steps, at the same resolution, and are
tested on 360 digits by other writers.

Hardware: two CPU cores are enough. Time and score: not measured yet.

Choices: `finetune` follows the paper (SGD, cosine, no weight decay); `scratch` uses AdamW with
weight decay, as a ViT does not train well from random weights with SGD. Digits are not flipped, and
crops keep at least 60 % of their area.
"""

from keras_vit.train import (
    DataConfig,
    FinetuneConfig,
    LoopConfig,
    OptimizerConfig,
    PretrainConfig,
    RunConfig,
    recipe_words,
    smoke_form,
)

IMAGE_SIZE = 32
MODEL = {
    "model": "ViT_Ti16",
    "variant": {
        "name": "ViT_Fractals",
        "patch_size": 4,
        "width": 96,
        "depth": 6,
        "num_heads": 3,
        "mlp_dim": 192,
    },
    "model_options": {"classifier": "gap", "position_embedding": "sincos2d"},
    "image_size": IMAGE_SIZE,
}
FRACTALS = RunConfig(
    data=DataConfig(
        kind="fractals", num_classes=200, images_per_class=500, image_size=IMAGE_SIZE, crop_area=0.6
    ),
    batch_size=128,
    optimizer=OptimizerConfig(
        name="adamw", learning_rate=1e-3, warmup_steps=300, weight_decay=0.05
    ),
    loop=LoopConfig(total_steps=5000, evaluate_every=1000, checkpoint_every=500),
)
DIGITS = {
    "data": DataConfig(kind="digits", flip=False, crop_area=0.6),
    "batch_size": 64,
    "loop": LoopConfig(total_steps=1000, evaluate_every=200, checkpoint_every=200),
}
FROM_FRACTALS = RunConfig(
    optimizer=OptimizerConfig(name="momentum", learning_rate=0.03, warmup_steps=100), **DIGITS
)
FROM_SCRATCH = RunConfig(
    optimizer=OptimizerConfig(
        name="adamw", learning_rate=1e-3, warmup_steps=100, weight_decay=0.05
    ),
    **DIGITS,
)
WORDS = {"part": ("pretrain", "finetune", "scratch"), "size": ("smoke",)}


def get_config(arg: str = "") -> PretrainConfig | FinetuneConfig:
    words = recipe_words(arg, WORDS)
    if words["part"] == "finetune":
        config = FinetuneConfig(run=FROM_FRACTALS, weights="runs/fractals/model.npz", **MODEL)
    else:
        config = PretrainConfig(
            run=FROM_SCRATCH if words["part"] == "scratch" else FRACTALS, **MODEL
        )
    return smoke_form(config) if words["size"] else config
