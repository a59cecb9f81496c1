"""Fine-tuning as in the paper: a head of zeros, a higher resolution, SGD with momentum, cosine, no decay.

arXiv:2010.11929, table 4 and B.1.1. From any checkpoint, published or of your own, to an image folder:

    python experiments/finetune.py --config=experiments/configs/finetune.py --workdir=runs/pets \\
        --config.run.data.name=/data/pets --config.weights=imagenet21k --config.model=ViT_B16 --config.image_size=384
    python experiments/finetune.py --config=experiments/configs/finetune.py:cifar10 --workdir=runs/cifar10_48px \\
        --config.run.data.name=/data/cifar10 --config.weights=runs/cifar10/model.npz   # of cifar10_scratch.py
    python experiments/finetune.py --config=experiments/configs/finetune.py:smoke --workdir=/tmp/smoke2 \\
        --config.weights=/tmp/smoke/model.npz                      # what `cifar10_scratch.py:smoke` left

The paper does not say how long the warm-up is: 500 steps in the authors' code, 100 for runs of 500. Crops are Inception
crops, as the authors ran it, and evaluation resizes without cropping.
"""

from dataclasses import replace

from keras_vit.train import DataConfig, FinetuneConfig, LoopConfig, OptimizerConfig, RunConfig


def get_config(arg: str = "") -> FinetuneConfig:
    if arg not in ("", "cifar10", "smoke"):
        raise ValueError(f'This recipe takes "cifar10", "smoke" or nothing after the colon. Received: {arg!r}.')
    config = FinetuneConfig(
        model="ViT_B16",
        weights="imagenet21k",
        image_size=384,
        run=RunConfig(
            data=DataConfig(kind="image_folder", name="data"),
            batch_size=512,
            optimizer=OptimizerConfig(
                name="momentum", learning_rate=0.01, schedule="cosine", warmup_steps=100, clip_norm=1.0
            ),
            loop=LoopConfig(total_steps=500, log_every=10, evaluate_every=100, checkpoint_every=100),
        ),
    )
    if arg in ("cifar10", "smoke"):
        config = _from_cifar10_scratch(config)
    return _smoke(config) if arg == "smoke" else config


def _from_cifar10_scratch(config: FinetuneConfig) -> FinetuneConfig:
    """The small model of `cifar10_scratch.py`, at 48 pixels instead of 32."""
    return replace(
        config,
        model="ViT_Ti16",
        weights="runs/cifar10/model.npz",
        variant={"name": "ViT_Cifar", "patch_size": 4, "width": 96, "depth": 6, "num_heads": 3, "mlp_dim": 192},
        model_options={"classifier": "gap", "position_embedding": "sincos2d"},
        image_size=48,
        run=replace(config.run, batch_size=128, data=replace(config.run.data, name="cifar10", crop_area=0.6)),
    )


def _smoke(config: FinetuneConfig) -> FinetuneConfig:
    run = replace(
        config.run,
        data=replace(config.run.data, kind="digits", name="", flip=False),
        batch_size=32,
        optimizer=replace(config.run.optimizer, warmup_steps=2),
        loop=LoopConfig(total_steps=10, log_every=2, evaluate_every=5, checkpoint_every=4),
    )
    variant = {**config.variant, "width": 32, "depth": 2, "num_heads": 2, "mlp_dim": 64}
    return replace(config, run=run, variant=variant, weights="/tmp/smoke/model.npz", image_size=24)
