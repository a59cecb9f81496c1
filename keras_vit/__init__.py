"""keras_vit: Vision Transformers in Keras 3, with published weights and outputs equal to the
reference implementations.
"""

import importlib
import os
import sys
from typing import TYPE_CHECKING

from keras_vit.quiet import quiet_import

__version__ = "0.1.0"

# Public names are imported on first use (`__getattr__`), except the classes that Keras must know to
# load a model. On the command line, each command imports what it needs: `info` does not load Keras,
# which takes seconds, and TensorFlow's log lines can only be suppressed before its first import (see
# `quiet.py`). A program can request the same with KERAS_VIT_IMPORT=parts.
_IS_COMMAND_LINE = ("-m", "keras_vit") in zip(sys.orig_argv, sys.orig_argv[1:], strict=False) or (
    os.path.basename(sys.argv[0]).removesuffix(".exe") == "keras-vit"
)
_IS_IN_PARTS = _IS_COMMAND_LINE or os.environ.get("KERAS_VIT_IMPORT") == "parts"

if not _IS_IN_PARTS:
    with quiet_import():
        # Registers this class and all layers.
        importlib.import_module("keras_vit.models.class_token")

if TYPE_CHECKING:
    from keras_vit import layers, models, variants
    from keras_vit.applications import (
        CLIP_B16,
        CLIP_B32,
        CLIP_H14,
        CLIP_L14,
        DINO_B8,
        DINO_B16,
        DINO_S8,
        DINO_S16,
        IJEPA_G16,
        IJEPA_H14,
        IJEPA_H16,
        MAE_B16,
        MAE_H14,
        MAE_L16,
        AxialResNet50,
        AxialViT_B16,
        AxialViT_B32,
        BiT_R50x1,
        BiT_R50x3,
        BiT_R101x1,
        BiT_R101x3,
        BiT_R152x2,
        BiT_R152x4,
        CLIP_bigG14,
        CLIP_g14,
        DeiT3_B16,
        DeiT3_H14,
        DeiT3_L16,
        DeiT3_M16,
        DeiT3_S16,
        DeiT_B16,
        DeiT_B16_distilled,
        DeiT_S16,
        DeiT_S16_distilled,
        DeiT_Ti16,
        DeiT_Ti16_distilled,
        DINOv2_B14,
        DINOv2_B14_reg4,
        DINOv2_g14,
        DINOv2_g14_reg4,
        DINOv2_L14,
        DINOv2_L14_reg4,
        DINOv2_S14,
        DINOv2_S14_reg4,
        DINOv3_7B16,
        DINOv3_B16,
        DINOv3_H16plus,
        DINOv3_L16,
        DINOv3_S16,
        DINOv3_S16plus,
        R26_ViT_B32,
        R26_ViT_S32,
        R50_ViT_B16,
        R50_ViT_B32,
        R50_ViT_L16,
        R50_ViT_L32,
        R_ViT_Ti16,
        ResNet50x1,
        ResNet50x2,
        ResNet101x1,
        ResNet152x1,
        ResNet152x2,
        ResNet200x3,
        SigLIP_B16,
        SigLIP_gopt16,
        SigLIP_L16,
        SigLIP_So400m14,
        SigLIP_So400m16,
        TIPSv2_B14,
        TIPSv2_g14,
        TIPSv2_L14,
        TIPSv2_So400m14,
        ViT_B8,
        ViT_B16,
        ViT_B32,
        ViT_H14,
        ViT_L16,
        ViT_L32,
        ViT_S16,
        ViT_S32,
        ViT_Ti16,
        application,
        list_models,
        list_weights,
    )
    from keras_vit.imagenet import decode_predictions, preprocess_input
    from keras_vit.models.ends import replace_head
    from keras_vit.weights.save import save_checkpoint

__all__ = [
    "AxialResNet50",
    "AxialViT_B16",
    "AxialViT_B32",
    "BiT_R50x1",
    "BiT_R50x3",
    "BiT_R101x1",
    "BiT_R101x3",
    "BiT_R152x2",
    "BiT_R152x4",
    "R26_ViT_B32",
    "R26_ViT_S32",
    "R50_ViT_B16",
    "R50_ViT_B32",
    "R50_ViT_L16",
    "R50_ViT_L32",
    "R_ViT_Ti16",
    "ResNet50x1",
    "ResNet50x2",
    "ResNet101x1",
    "ResNet152x1",
    "ResNet152x2",
    "ResNet200x3",
    "ViT_B8",
    "ViT_B16",
    "ViT_B32",
    "ViT_H14",
    "ViT_L16",
    "ViT_L32",
    "ViT_S16",
    "ViT_S32",
    "ViT_Ti16",
    "SigLIP_B16",
    "SigLIP_L16",
    "SigLIP_So400m14",
    "SigLIP_So400m16",
    "SigLIP_gopt16",
    "DINO_S16",
    "DINO_S8",
    "DINO_B16",
    "DINO_B8",
    "MAE_B16",
    "MAE_L16",
    "MAE_H14",
    "IJEPA_H14",
    "IJEPA_H16",
    "IJEPA_G16",
    "DeiT_Ti16",
    "DeiT_S16",
    "DeiT_B16",
    "DeiT_Ti16_distilled",
    "DeiT_S16_distilled",
    "DeiT_B16_distilled",
    "DeiT3_S16",
    "DeiT3_M16",
    "DeiT3_B16",
    "DeiT3_L16",
    "DeiT3_H14",
    "CLIP_B32",
    "CLIP_B16",
    "CLIP_L14",
    "CLIP_H14",
    "CLIP_g14",
    "CLIP_bigG14",
    "DINOv2_S14",
    "DINOv2_B14",
    "DINOv2_L14",
    "DINOv2_g14",
    "DINOv2_S14_reg4",
    "DINOv2_B14_reg4",
    "DINOv2_L14_reg4",
    "DINOv2_g14_reg4",
    "TIPSv2_B14",
    "TIPSv2_L14",
    "TIPSv2_So400m14",
    "TIPSv2_g14",
    "DINOv3_S16",
    "DINOv3_S16plus",
    "DINOv3_B16",
    "DINOv3_L16",
    "DINOv3_H16plus",
    "DINOv3_7B16",
    "__version__",
    "application",
    "decode_predictions",
    "layers",
    "list_models",
    "list_weights",
    "models",
    "preprocess_input",
    "replace_head",
    "save_checkpoint",
    "variants",
]


_MODULES = (
    "analyze",
    "applications",
    "cost",
    "data",
    "devices",
    "evaluate",
    "export",
    "grid",
    "imagenet",
    "kernels",
    "layers",
    "models",
    "options",
    "paper",
    "photos",
    "pixels",
    "train",
    "variants",
    "weights",
)


def __getattr__(name: str) -> object:
    """Imports a public name or a module on first use (PEP 562)."""
    if name == "finetune":
        return importlib.import_module("keras_vit.train.finetune").finetune
    if name in _MODULES:
        return importlib.import_module(f"keras_vit.{name}")
    for home in (
        ("applications", "imagenet", "models.ends", "weights.save") if name in __all__ else ()
    ):
        found = vars(importlib.import_module(f"keras_vit.{home}"))
        if name in found:
            return found[name]
    raise AttributeError(f"module 'keras_vit' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*__all__, *_MODULES, "finetune"})
