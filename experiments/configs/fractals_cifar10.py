"""From fractals to CIFAR-10: does a small ViT that has seen only drawn pictures learn faster from
few photos?

No table of the paper, whose pre-training sets are large or private: the question of
arXiv:2010.11929, section 4.3, in small. Fractals as the pictures: arXiv:2101.08515 and
arXiv:2103.13023. This is the first half; the second is cifar10_few_labels.py.

    python experiments/pretrain.py --config=experiments/configs/fractals_cifar10.py --workdir=runs/fractals
    python experiments/finetune.py --config=experiments/configs/cifar10_few_labels.py:finetune --workdir=runs/few \\
        --config.weights=runs/fractals/model.npz --config.run.data.name=/data/cifar10
    python experiments/pretrain.py --config=experiments/configs/fractals_cifar10.py:smoke --workdir=/tmp/smoke

Hardware, time and score: experiments/README.md. `long` is ten times as many steps, of ten times as
many fractals.

Chosen here: the model of cifar10_scratch.py, 32 pixels, Muon.
"""

from dataclasses import replace
from pathlib import Path

from keras_vit.train import (
    DataConfig,
    LoopConfig,
    OptimizerConfig,
    PretrainConfig,
    RunConfig,
    load_config,
    recipe_words,
    smoke_form,
)

STEPS = 1500
WORDS = {"length": ("long",), "size": ("smoke",)}


def get_config(arg: str = "") -> PretrainConfig:
    words = recipe_words(arg, WORDS)
    times = 10 if words["length"] else 1
    data = DataConfig(
        kind="fractals", num_classes=200, images_per_class=500 * times, image_size=32, crop_area=0.6
    )
    run = RunConfig(
        data=data,
        batch_size=128,
        optimizer=OptimizerConfig(
            name="muon", learning_rate=5e-3, warmup_steps=100, weight_decay=0.05
        ),
        loop=LoopConfig(
            total_steps=STEPS * times, log_every=100, evaluate_every=500, checkpoint_every=250
        ),
    )
    config = replace(load_config(str(Path(__file__).with_name("cifar10_scratch.py"))), run=run)
    return smoke_form(config) if words["size"] else config
