"""Cells of the benchmark's table: model, image size, batch size, precision and task."""

import dataclasses
import json
from typing import Literal, get_args

Precision = Literal["float32", "bfloat16"]
Task = Literal["inference", "adamw", "sgd"]

# Packages that each rival requires.
NEEDS = {
    "keras_vit": ("keras",),
    "keras-hub": ("keras_hub", "keras"),
    "vit-keras": ("vit_keras", "tensorflow"),
    "timm": ("timm", "torch"),
    "timm compiled": ("timm", "torch"),
    "hugging-face": ("transformers", "torch"),
    "flax": ("flax", "optax", "jax"),
}

QUERY_CHUNK = 256
PATCH_SIZE = 16  # of all models


@dataclasses.dataclass(frozen=True)
class Shape:
    """The dimensions of a ViT, and its names in other packages; None if a package lacks it."""

    width: int
    depth: int
    num_heads: int
    mlp_dim: int
    timm: str
    vit_keras: str | None = None
    is_hybrid: bool = False


SHAPES = {
    "ViT_Ti16": Shape(192, 12, 3, 768, "vit_tiny_patch16_224"),
    "ViT_S16": Shape(384, 12, 6, 1536, "vit_small_patch16_224"),
    "ViT_B16": Shape(768, 12, 12, 3072, "vit_base_patch16_224", "vit_b16"),
    "ViT_L16": Shape(1024, 24, 16, 4096, "vit_large_patch16_224", "vit_l16"),
    "R50_ViT_B16": Shape(768, 12, 12, 3072, "vit_base_r50_s16_224", is_hybrid=True),
}


def model_and_size(name: str) -> tuple[str, int]:
    """Splits "ViT_B16@384" into ("ViT_B16", 384). The default side is 224 pixels."""
    model, at, size = name.partition("@")
    if model not in SHAPES or (at and not size.isdecimal()):
        raise ValueError(
            f"A model must be NAME or NAME@SIDE, with a name of {', '.join(SHAPES)} and a side in "
            f"pixels. Received: {name}."
        )
    return model, int(size or 224)


@dataclasses.dataclass(frozen=True)
class Cell:
    """One cell of the benchmark.

    Attributes:
        model: Key of `SHAPES`.
        image_size: Side in pixels.
        batch_size: Images per step.
        precision: Dtype of matrix products. With "bfloat16", weights are bfloat16 in inference and
            float32 in training.
        task: "inference", or the optimizer of a training step.
        saving: How memory is saved: "remat", blocks are recomputed in the backward pass;
            "query_chunk", attention takes 256 queries at a time.
    """

    model: str
    image_size: int
    batch_size: int
    precision: Precision
    task: Task
    saving: Literal["", "remat", "query_chunk"] = ""

    def __post_init__(self) -> None:
        for name, there_are in (("precision", get_args(Precision)), ("task", get_args(Task))):
            if getattr(self, name) not in there_are:
                raise ValueError(
                    f"`{name}` must be one of {', '.join(there_are)}. Received: "
                    f"{getattr(self, name)}."
                )
        if self.batch_size < 1:
            raise ValueError(
                f"`batch_size` must be at least 1. Received: a batch of {self.batch_size} images."
            )

    def __str__(self) -> str:
        return f"{self.model} {self.image_size} px, batch {self.batch_size}, {self.precision}, {self.task}"

    @property
    def shape(self) -> Shape:
        return SHAPES[self.model]

    @property
    def trains(self) -> bool:
        return self.task != "inference"

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "Cell":
        return cls(**json.loads(text))


class Absent(Exception):
    """The rival lacks the model or the option of a cell."""
