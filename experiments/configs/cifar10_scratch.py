"""CIFAR-10 from scratch with a small ViT: images of 32 pixels, patches of 4.

No table of the paper corresponds to it: trained from scratch on 50,000 images, a ViT is less
accurate than a ResNet of its size (arXiv:2010.11929, figure 4).

    python experiments/pretrain.py --config=experiments/configs/cifar10_scratch.py --workdir=runs/cifar10 \\
        --config.run.data.name=/data/cifar10                       # an image folder: train/<class>/*.jpg, test/
    python experiments/pretrain.py --config=experiments/configs/cifar10_scratch.py:tfds --workdir=runs/cifar10
    python experiments/pretrain.py --config=experiments/configs/cifar10_scratch.py:smoke --workdir=/tmp/smoke

Hardware: two CPU cores. Time and score: 35 minutes, 78.3 % of the 10,000 test images; see
experiments/README.md. `smoke` trains on scikit-learn's digits in less than a minute.
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

EPOCHS = 15
BATCH_SIZE = 128
STEPS = EPOCHS * 50_000 // BATCH_SIZE
WORDS = {"data": ("tfds",), "size": ("smoke",)}


def get_config(arg: str = "") -> PretrainConfig:
    words = recipe_words(arg, WORDS)
    data = DataConfig(
        kind="tfds" if words["data"] else "image_folder",
        name="cifar10",
        # weaker than the default, which pays off only in longer runs
        crop_area=0.6,
    )
    config = PretrainConfig(
        model="ViT_Ti16",
        variant={
            "name": "ViT_Cifar",
            "patch_size": 4,
            "width": 96,
            "depth": 6,
            "num_heads": 2,
            "mlp_dim": 192,
        },
        # Mean of the patches and fixed positions, as in arXiv:2205.01580, since learned positions
        # and a class token need many epochs. After 500 steps the accuracy is 46.9 % with fixed
        # positions and 39.9 % with learned ones. On CPUs the exact GELU is one fused operation and
        # faster than the tanh approximation.
        model_options={"classifier": "gap", "position_embedding": "sincos2d", "gelu": "exact"},
        image_size=32,
        run=RunConfig(
            data=data,
            batch_size=BATCH_SIZE,
            optimizer=OptimizerConfig(
                # Accuracy after 500 steps: AdamW 45.8 % at a learning rate of 2e-3, 43.3 % at 4e-3;
                # Muon 51.3 % at 2e-3, 53.7 % at 5e-3.
                name="muon",
                learning_rate=5e-3,
                schedule="cosine",
                warmup_steps=300,
                weight_decay=0.05,
                clip_norm=1.0,
                average_momentum=0.999,
            ),
            loop=LoopConfig(
                total_steps=STEPS, log_every=100, evaluate_every=1250, checkpoint_every=250
            ),
        ),
    )
    return smoke_form(config) if words["size"] else config
