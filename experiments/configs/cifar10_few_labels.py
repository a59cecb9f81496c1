"""CIFAR-10 with few labels, from pre-trained or from random weights.

The second part of the experiments `fractals_cifar10.py`, `masked_patches.py:cifar10` and
`mae.py:cifar10`. It asks the question of arXiv:2010.11929, sections 4.3 and 4.6, on a small scale;
no table of the paper corresponds to it.

    python experiments/finetune.py --config=experiments/configs/cifar10_few_labels.py:finetune --workdir=runs/few \\
        --config.weights=runs/fractals/model.npz --config.run.data.name=/data/cifar10 --config.run.seed=0
    python experiments/pretrain.py --config=experiments/configs/cifar10_few_labels.py:scratch --workdir=runs/scratch \\
        --config.run.data.name=/data/cifar10 --config.run.seed=0

Words: `finetune` (the default) starts from pre-trained weights, `scratch` from random ones. Both
have the same model, images, labels, batches, optimizer and number of steps. `10percent` (the
default) or `2percent` of the labels, drawn by the seed. `smoke` trains on scikit-learn's digits in
less than a minute. The model is tested once, at the end, on all test images.

Hardware, time and score: experiments/README.md.

Choices: Muon instead of the paper's SGD, as a ViT does not train well from random weights with SGD,
and both starts must have the same optimizer.
"""

from dataclasses import replace
from pathlib import Path

from keras_vit.train import (
    DataConfig,
    FinetuneConfig,
    LoopConfig,
    OptimizerConfig,
    PretrainConfig,
    RunConfig,
    load_config,
    recipe_words,
    smoke_form,
)

LABELS = {"10percent": (0.1, 400), "2percent": (0.02, 200)}  # share of the training set, steps
WORDS = {"start": ("finetune", "scratch"), "labels": tuple(LABELS), "size": ("smoke",)}


def get_config(arg: str = "") -> PretrainConfig | FinetuneConfig:
    words = recipe_words(arg, WORDS)
    share, steps = LABELS[words["labels"] or "10percent"]
    run = RunConfig(
        data=DataConfig(kind="image_folder", name="cifar10", crop_area=0.6, train_share=share),
        batch_size=128,
        optimizer=OptimizerConfig(
            name="muon", learning_rate=3e-3, warmup_steps=50, weight_decay=0.05
        ),
        loop=LoopConfig(total_steps=steps, log_every=50, checkpoint_every=200),
    )
    config = replace(load_config(str(Path(__file__).with_name("cifar10_scratch.py"))), run=run)
    if words["start"] != "scratch":
        config = FinetuneConfig(
            weights="runs/fractals/model.npz",
            model=config.model,
            variant=config.variant,
            model_options=config.model_options,
            image_size=config.image_size,
            run=run,
        )
    return smoke_form(config) if words["size"] else config
