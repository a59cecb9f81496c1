"""Pre-training on drawn fractals, for fine-tuning on CIFAR-10 with few labels.

It asks the question of arXiv:2010.11929, section 4.3, on a small scale: how much pre-training helps
when images are few. No table of the paper corresponds to it, as the paper's pre-training sets are
large or private. Fractals are from arXiv:2101.08515 and arXiv:2103.13023. `cifar10_few_labels.py`
fine-tunes the model.

    python experiments/pretrain.py --config=experiments/configs/fractals_cifar10.py --workdir=runs/fractals
    python experiments/finetune.py --config=experiments/configs/cifar10_few_labels.py:finetune --workdir=runs/few \\
        --config.weights=runs/fractals/model.npz --config.run.data.name=/data/cifar10
    python experiments/pretrain.py --config=experiments/configs/fractals_cifar10.py:smoke --workdir=/tmp/smoke

Hardware, time and score: experiments/README.md. `long` trains for ten times as many steps, on ten
times as many fractals.

Choices: the model of `cifar10_scratch.py`, images of 32 pixels, Muon.
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
