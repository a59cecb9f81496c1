"""Pre-training as in the paper: all rows of table 3, for ViTs, ResNets and hybrids.

arXiv:2010.11929, table 3 and section 4.1. Words: data set, model and epochs, in any order.

    python experiments/pretrain.py --config=experiments/configs/pretrain.py:imagenet,ViT_B16 --workdir=runs/imagenet_B16
    python experiments/pretrain.py --config=experiments/configs/pretrain.py:imagenet21k,ViT_L16,30ep \\
        --workdir=runs/imagenet21k_L16 --config.run.data.name=/data/imagenet21k     # a folder: train/<class>/*.jpg
    python experiments/pretrain.py --config=experiments/configs/pretrain.py:jft,R50_ViT_B16 \\
        --workdir=runs/jft_R50_B16 --config.run.data.name=/data/like_jft            # the same; JFT-300M is not public
    python experiments/pretrain.py --config=experiments/configs/pretrain.py:smoke,ViT_H14,jft --workdir=/tmp/smoke

ImageNet is read from TensorFlow Datasets, or, with --config.run.data.kind=image_folder, from a
folder. If table 3 has two lengths, the longer one is the default. `smoke` trains on scikit-learn's
digits in less than a minute.

Hardware and time, of the paper: TPUv3; L/16 on ImageNet-21k 230 core-days (30 days of 8 cores),
L/16 on JFT-300M 680, H/14 on JFT-300M 2500. Score: after 300 epochs of ImageNet, validated at 224
pixels, B/32 69.19, B/16 74.79, L/32 66.90, L/16 72.59 % (the authors,
github.com/google-research/vision_transformer); fine-tuned, see tables 5 and 6, and
experiments/README.md. Ours: no such run has been made.

Choices where the paper is silent:

- Loss: sigmoid on all three data sets, with the bias of the head initialized to -ln(classes). The
  authors state this for ImageNet-21k and JFT, and their later recipe (AugReg) uses it on ImageNet
  too. The alternative is `--config.run.loss=softmax`.
- Label smoothing: 0. According to section 4.3 it was tuned for the small sets; no value is given.
- Weight decay: applied to kernels only, as in the authors' later code (big_vision). Their first
  code is said to have decayed biases, norms and positions too: `--config.run.optimizer.decay=all`.
- ResNets: with post-activation, `ResNet50x1` and its relatives, as the paper's baselines in the
  authors' later code.
- Validation: the validation set of ImageNet; of the other two data sets, 51,200 images are held out
  of `train`. As in big_vision, the shorter side is resized to 256 pixels and the central 224 are
  cropped. Duplicates of other test sets must be removed beforehand.
- Models with a score in table 5 or 6 but no row in table 3 use the row of the most similar model:
  `NOT_IN_TABLE_3`.
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
from keras_vit.variants import VIT_VARIANTS

# Training images. ImageNet (ILSVRC-2012): its own; ImageNet-21k: image-net.org, fall 2011;
# JFT-300M: configs of github.com/google-research/scenic.
NUM_IMAGES = {"imagenet": 1_281_167, "imagenet21k": 14_197_122, "jft": 303_021_387}
HELD_OUT_IMAGES = 51_200
BATCH_SIZE = 4096

VITS = ("ViT_B16", "ViT_B32", "ViT_L16", "ViT_L32", "ViT_H14")
# Models, data, epochs, peak learning rate, weight decay, dropout.
TABLE_3 = (
    (("ViT_B16", "ViT_B32"), "jft", (7,), 8e-4, 0.1, 0.0),
    (("ViT_L32",), "jft", (7,), 6e-4, 0.1, 0.0),
    (("ViT_L16",), "jft", (7, 14), 4e-4, 0.1, 0.0),
    (("ViT_H14",), "jft", (14,), 3e-4, 0.1, 0.0),
    (("ResNet50x1", "ResNet50x2"), "jft", (7,), 1e-3, 0.1, 0.0),
    (("ResNet101x1",), "jft", (7,), 8e-4, 0.1, 0.0),
    (("ResNet152x1", "ResNet152x2"), "jft", (7,), 6e-4, 0.1, 0.0),
    (("R50_ViT_B16", "R50_ViT_B32"), "jft", (7,), 8e-4, 0.1, 0.0),
    (("R50_ViT_L32",), "jft", (7,), 2e-4, 0.1, 0.0),
    (("R50_ViT_L16",), "jft", (7, 14), 4e-4, 0.1, 0.0),
    (("ViT_B16", "ViT_B32"), "imagenet21k", (90,), 1e-3, 0.03, 0.1),
    (("ViT_L16", "ViT_L32"), "imagenet21k", (30, 90), 1e-3, 0.03, 0.1),
    (VITS, "imagenet", (300,), 3e-3, 0.3, 0.1),
)
NOT_IN_TABLE_3 = (
    (("ViT_H14",), "imagenet21k", (30, 90), 1e-3, 0.03, 0.1),  # in table 5; as L
    (("ResNet152x2",), "jft", (14,), 6e-4, 0.1, 0.0),  # in table 6; as for 7 epochs
    (("ResNet200x3",), "jft", (14,), 6e-4, 0.1, 0.0),  # in table 6; as R152
)
ROWS = {
    (model, data, epochs): (rate, decay, dropout)
    for models, data, lengths, rate, decay, dropout in (*TABLE_3, *NOT_IN_TABLE_3)
    for model in models
    for epochs in lengths
}
WORDS = {
    "data": tuple(NUM_IMAGES),
    "model": tuple(dict.fromkeys(model for model, _, _ in ROWS)),
    "epochs": tuple(f"{epochs}ep" for epochs in sorted({epochs for _, _, epochs in ROWS})),
    "size": ("smoke",),
}


def get_config(arg: str = "") -> PretrainConfig:
    words = recipe_words(arg, WORDS)
    model, data, epochs = _find_row(words)
    rate, decay, dropout = ROWS[model, data, epochs]
    steps = epochs * NUM_IMAGES[data] // BATCH_SIZE
    on_imagenet = data == "imagenet"
    config = PretrainConfig(
        model=model,
        # only Transformers, with or without a stem, have the tanh layer and dropout
        model_options={"representation_size": VIT_VARIANTS[model].width, "dropout_rate": dropout}
        if model in VIT_VARIANTS
        else {},
        image_size=224,
        run=RunConfig(
            data=_make_data_config(data),
            batch_size=BATCH_SIZE,
            loss="sigmoid",
            optimizer=OptimizerConfig(
                name="adam",
                options={"beta_1": 0.9, "beta_2": 0.999},
                learning_rate=rate,
                schedule="cosine" if on_imagenet else "linear",
                schedule_options={} if on_imagenet else {"linear_end": 1e-5},
                warmup_steps=10_000,
                weight_decay=decay,
                decay="kernels",
                clip_norm=1.0 if on_imagenet else None,
            ),
            loop=LoopConfig(total_steps=steps, evaluate_every=steps // 50),
        ),
    )
    return smoke_form(config) if words["size"] else config


def _find_row(words: dict[str, str]) -> tuple[str, str, int]:
    """Returns the key of the row that the words name. Defaults: the first data set and the longest
    run.
    """
    model = words["model"] or "ViT_B16"
    rows = [(data, epochs) for other, data, epochs in ROWS if other == model]
    fits = [
        (WORDS["data"].index(data), -epochs)
        for data, epochs in rows
        if words["data"] in ("", data) and words["epochs"] in ("", f"{epochs}ep")
    ]
    if not fits:
        lengths = ", ".join(f"{data},{epochs}ep" for data, epochs in rows)
        raise ValueError(
            f"The paper has no such run of {model}. Its runs of this model: {lengths}."
        )
    number, epochs = min(fits)
    return model, WORDS["data"][number], -epochs


def _make_data_config(data: str) -> DataConfig:
    if data == "imagenet":
        return DataConfig(
            kind="tfds", name="imagenet2012", test="validation", eval_crop="resize_shorter"
        )
    held_out = HELD_OUT_IMAGES / NUM_IMAGES[data]
    return DataConfig(kind="image_folder", name=data, held_out=held_out, eval_crop="resize_shorter")
