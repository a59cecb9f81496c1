"""ViT-S/16 on ImageNet from scratch in a short time: 76.5 % after 90 epochs, 80.0 % after 300.

arXiv:2205.01580 ("Better plain ViT baselines for ImageNet-1k"), table 1;
github.com/google-research/big_vision, vit_s16_i1k.py. Batches of 1024, fixed sine-cosine positions,
the average of the patches, RandAugment and mixup. Words: `90ep` (the default), `150ep` or `300ep`.

    python experiments/pretrain.py --config=experiments/configs/plain_vit_s16.py --workdir=runs/plain_S16
    python experiments/pretrain.py --config=experiments/configs/plain_vit_s16.py:300ep --workdir=runs/plain_S16_300ep \\
        --config.run.data.kind=image_folder --config.run.data.name=/data/imagenet --config.run.data.train=train
    python experiments/pretrain.py --config=experiments/configs/plain_vit_s16.py:smoke --workdir=/tmp/smoke

Hardware and time: 6.5 hours for 90 epochs on a TPUv3-8. Score: 76.5 / 78.5 / 80.0 % on ImageNet's
validation set (ReaL 83.1 / 84.5 / 85.4, ImageNet-v2 64.2 / 66.4 / 68.3 %). Ours: no such run has
been made.

Differences from the source: Adam's first moments are float32 instead of bfloat16; the weight decay
of 1e-4 is written as 0.1, as it is multiplied by the learning rate. As in its code, weight decay
applies to kernels only, and the last 1 % of the training set is not used.
"""

from keras_vit.train import (
    DataConfig,
    LoopConfig,
    OptimizerConfig,
    PretrainConfig,
    RunConfig,
    recipe_words,
    smoke_form,
)

NUM_IMAGES = 1_268_355  # of ImageNet's 1,281,167, without 1 %
BATCH_SIZE = 1024
WORDS = {"epochs": ("90ep", "150ep", "300ep"), "size": ("smoke",)}


def get_config(arg: str = "") -> PretrainConfig:
    words = recipe_words(arg, WORDS)
    epochs = int((words["epochs"] or "90ep").removesuffix("ep"))
    steps = epochs * NUM_IMAGES // BATCH_SIZE
    config = PretrainConfig(
        model="ViT_S16",
        model_options={
            "classifier": "gap",
            "position_embedding": "sincos2d",
            "representation_size": 384,
        },
        image_size=224,
        run=RunConfig(
            data=DataConfig(
                kind="tfds",
                name="imagenet2012",
                train="train[:99%]",
                test="validation",
                eval_crop="resize_shorter",
                rand_augment_ops=2,
                rand_augment_magnitude=10.0,
                mixup_alpha=0.2,
            ),
            batch_size=BATCH_SIZE,
            loss="softmax",
            optimizer=OptimizerConfig(
                name="adam",
                options={"beta_1": 0.9, "beta_2": 0.999},
                learning_rate=1e-3,
                schedule="cosine",
                warmup_steps=10_000,
                weight_decay=0.1,
                decay="kernels",
                clip_norm=1.0,
            ),
            loop=LoopConfig(total_steps=steps, evaluate_every=steps // 50),
        ),
    )
    return smoke_form(config) if words["size"] else config
