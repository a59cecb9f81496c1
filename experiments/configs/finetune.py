"""Fine-tuning as in the paper: head of zeros, higher resolution, SGD with a cosine schedule.

arXiv:2010.11929, table 4 and B.1.1. Starts from any checkpoint, published or your own. Words: data
set and model; without a data set, an image folder of your own.

    python experiments/finetune.py --config=experiments/configs/finetune.py:cifar100,ViT_L16 --workdir=runs/cifar100
    python experiments/sweep.py --config=experiments/configs/finetune.py:pets --workdir=runs/pets   # as the paper does
    python experiments/finetune.py --config=experiments/configs/finetune.py --workdir=runs/mine \\
        --config.run.data.name=/data/mine --config.weights=imagenet21k --config.model=ViT_B16 --config.image_size=384
    python experiments/finetune.py --config=experiments/configs/finetune.py:cifar10_48px --workdir=runs/cifar10_48px \\
        --config.run.data.name=/data/cifar10 --config.weights=runs/cifar10/model.npz   # of cifar10_scratch.py
    python experiments/finetune.py --config=experiments/configs/finetune.py:smoke --workdir=/tmp/smoke2 \\
        --config.weights=/tmp/smoke/model.npz     # written by `cifar10_scratch.py:smoke`, or, with a word for the
                                                  # model, by `pretrain.py:smoke,<model>`

The named data sets are read from TensorFlow Datasets, or, with --config.run.data.kind=image_folder,
from a folder. `vtab` is any one of VTAB's 19 tasks of 1000 images, in a folder;
`experiments/vtab.py` runs all 19. The weights are the published ones of ImageNet-21k, if there are
any.

Hardware and time: the paper names none for fine-tuning. Score, after ImageNet-21k, at 384 pixels
(table 5): ViT-B/16 CIFAR-10 98.95, CIFAR-100 91.67, ImageNet 83.97, Flowers 99.38, Pets 94.43 %;
ViT-L/16 99.16, 93.44, 85.15, 99.61, 94.73 %. Ours: no such run has been made.

Choices where the paper is silent:

- Learning rate: 0.01, the one of the grid that the paper uses for VTAB. `sweep.py` tries the grid
  of `get_sweep` on a held-out part of the training set. Table 4 lists 0.06 on ImageNet for all
  models, while the text adds it only for ResNets and hybrids, as `get_sweep` does.
- Warm-up: 500 steps, but 100 of 500 and 200 of 2500, as in the authors' code.
- Crops: Inception crops, as used by the authors; evaluation resizes without cropping. The paper
  describes BiT's crops: `--config.run.data.crop=resize_crop`.
- Image size of ViT-H/14: 378 pixels, as 384 is not a multiple of 14. In the authors' code its
  patches cover 378 of 384 pixels.
- Dropout: 0. Of the authors' runs with 0.0 and 0.1 neither is better.
- Flowers: the 1020 images of `train`, without those of `validation`, as in BiT.
"""

from dataclasses import dataclass, replace
from pathlib import Path

import keras_vit
from keras_vit.train import (
    DataConfig,
    FinetuneConfig,
    LoopConfig,
    OptimizerConfig,
    RunConfig,
    load_config,
    recipe_words,
    smoke_form,
)
from keras_vit.variants import VARIANTS, ViTVariant


@dataclass(frozen=True)
class Task:
    """A row of table 4; `held_out` is the share of the training set that learning rates are chosen
    on (B.1.1).
    """

    steps: int
    warmup_steps: int
    learning_rates: tuple[float, ...]
    held_out: float
    data: DataConfig


FOLDER = DataConfig(kind="image_folder", name="data")
MOST = (0.001, 0.003, 0.01, 0.03)
TABLE_4 = {
    "imagenet": Task(
        20_000,
        500,
        (0.003, 0.01, 0.03, 0.06),
        0.01,
        DataConfig(kind="tfds", name="imagenet2012", test="validation"),
    ),
    "cifar100": Task(10_000, 500, MOST, 0.02, DataConfig(kind="tfds", name="cifar100")),
    "cifar10": Task(10_000, 500, MOST, 0.02, DataConfig(kind="tfds", name="cifar10")),
    "pets": Task(500, 100, MOST, 0.1, DataConfig(kind="tfds", name="oxford_iiit_pet")),
    "flowers": Task(500, 100, MOST, 0.1, DataConfig(kind="tfds", name="oxford_flowers102")),
    "vtab": Task(2500, 200, (0.01,), 0.2, FOLDER),  # 200 of the 1000 images of a task
}
YOURS = replace(TABLE_4["pets"], data=FOLDER)
SMALL = "cifar10_48px"  # the small model of `cifar10_scratch.py`, at 48 pixels instead of 32
WORDS = {"data": (*TABLE_4, SMALL), "model": tuple(keras_vit.list_models()), "size": ("smoke",)}


def get_config(arg: str = "") -> FinetuneConfig:
    words = recipe_words(arg, WORDS)
    model = words["model"] or "ViT_B16"
    config = _make_config(TABLE_4.get(words["data"], YOURS), model)
    if words["data"] == SMALL and words["model"]:
        raise ValueError(f"`{SMALL}` must not be combined with a model. Received: {arg!r}.")
    if words["data"] == SMALL or (words["size"] and not words["model"]):
        config = _use_cifar10_scratch(config)
    return smoke_form(config) if words["size"] else config


def get_sweep(arg: str = "") -> dict:
    """Returns the learning rates to try, and the held-out share of the training set."""
    words = recipe_words(arg, WORDS)
    task = TABLE_4.get(words["data"], YOURS)
    row = VARIANTS[words["model"] or "ViT_B16"]
    is_plain_vit = isinstance(row, ViTVariant) and row.stem is None
    rates = tuple(rate for rate in task.learning_rates if rate != 0.06 or not is_plain_vit)
    return {"learning_rates": rates, "held_out": task.held_out}


def _make_config(task: Task, model: str) -> FinetuneConfig:
    is_published = "imagenet21k" in keras_vit.list_weights(model)
    # 378 pixels for patches of 14; a ResNet takes images of any size
    patch = getattr(VARIANTS[model], "patch_size", 1)
    return FinetuneConfig(
        model=model,
        weights="imagenet21k" if is_published else f"runs/{model}/model.npz",
        image_size=384 - 384 % patch,
        run=RunConfig(
            data=task.data,
            batch_size=512,
            optimizer=OptimizerConfig(
                name="momentum",
                options={"momentum": 0.9},
                learning_rate=0.01,
                schedule="cosine",
                warmup_steps=task.warmup_steps,
                clip_norm=1.0,
            ),
            loop=LoopConfig(
                total_steps=task.steps,
                log_every=10,
                evaluate_every=task.steps // 5,
                checkpoint_every=task.steps // 5,
            ),
        ),
    )


def _use_cifar10_scratch(config: FinetuneConfig) -> FinetuneConfig:
    """Returns the config for the model of `cifar10_scratch.py` at 48 pixels."""
    small = load_config(str(Path(__file__).with_name("cifar10_scratch.py")))
    data = replace(FOLDER, name="cifar10", crop_area=0.6)
    return replace(
        config,
        model=small.model,
        weights="runs/cifar10/model.npz",
        variant=small.variant,
        model_options=small.model_options,
        image_size=48,
        run=replace(config.run, batch_size=128, data=data),
    )
