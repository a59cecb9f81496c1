"""What is measured: one cell of the benchmark's table."""

import dataclasses
import json
from typing import Literal

# Packages that must be there, by rival. Ours needs what Keras runs on, no more.
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


@dataclasses.dataclass(frozen=True)
class Shape:
    """A ViT, and what the packages call it; None where they have none of this shape."""

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


@dataclasses.dataclass(frozen=True)
class Cell:
    """One measurement. Precision bfloat16 means bfloat16 weights in inference, and float32 weights in training.

    `saving` is how memory is saved: "remat", blocks computed twice; "query_chunk", 256 queries at a time.
    """

    model: str
    image_size: int
    batch_size: int
    precision: Literal["float32", "bfloat16"]
    task: Literal["inference", "adamw", "sgd"]
    saving: Literal["", "remat", "query_chunk"] = ""

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
    """This rival has no such model, or cannot do this."""
