"""Run as a script by test_loop.py: a run with all that draws or averages, on scikit-learn's digits.

python everything_on.py WORKDIR [STEPS]
"""

import os
import sys

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"

from keras_vit.train import (  # noqa: E402
    EXIT_STOPPED,
    DataConfig,
    DevicesConfig,
    LoopConfig,
    OptimizerConfig,
    PretrainConfig,
    RunConfig,
    Stopped,
    pretrain,
)

config = PretrainConfig(
    model="ViT_Ti16",
    variant={
        "name": "tiny",
        "patch_size": 4,
        "width": 16,
        "depth": 2,
        "num_heads": 2,
        "mlp_dim": 32,
    },
    model_options={"dropout_rate": 0.1, "stochastic_depth_rate": 0.1},
    image_size=16,
    run=RunConfig(
        data=DataConfig(kind="digits", crop_area=0.3, rand_augment_ops=2, mixup_alpha=0.2),
        batch_size=30,
        eval_batch_size=100,
        accumulation_steps=2,
        optimizer=OptimizerConfig(
            name="adamw", weight_decay=0.1, warmup_steps=3, average_momentum=0.9
        ),
        devices=DevicesConfig(kind=os.environ.get("KIND", "auto")),
        loop=LoopConfig(
            total_steps=int(sys.argv[2]) if len(sys.argv) > 2 else 150,
            log_every=5,
            evaluate_every=20,
            checkpoint_every=3,
            keep_checkpoints=2,
        ),
    ),
)
try:
    pretrain(config, sys.argv[1])
except Stopped as stopped:
    print(stopped)
    sys.exit(EXIT_STOPPED)
