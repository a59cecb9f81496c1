"""keras_vit: the Vision Transformer in Keras 3, with published weights and numbers that equal the
reference.
"""

import importlib
import os
import sys

from keras_vit.quiet import quiet_import

__version__ = "0.1.0"

# A command line imports what its command needs when it needs it: `info` answers without Keras,
# which takes seconds to load, and what TensorFlow logs while it loads can be held back only by who
# comes first (see `cli.py`). So does a program that says KERAS_VIT_IMPORT=parts. Whoever else
# imports the package gets all of it, so that Keras knows its layers when it loads a model.
_IS_COMMAND_LINE = ("-m", "keras_vit") in zip(sys.orig_argv, sys.orig_argv[1:], strict=False) or (
    os.path.basename(sys.argv[0]).removesuffix(".exe") == "keras-vit"
)
_IS_IN_PARTS = _IS_COMMAND_LINE or os.environ.get("KERAS_VIT_IMPORT") == "parts"

if not _IS_IN_PARTS:
    with quiet_import():
        from keras_vit import layers, models, variants
    from keras_vit.applications import (
        AxialResNet50,
        AxialViT_B16,
        AxialViT_B32,
        BiT_R50x1,
        BiT_R50x3,
        BiT_R101x1,
        BiT_R101x3,
        BiT_R152x2,
        BiT_R152x4,
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


def __getattr__(name: str) -> object:
    """Imported on first use (PEP 562): what needs TensorFlow, and in a command line every public
    name.
    """
    if name in (
        "analyze",
        "cost",
        "data",
        "evaluate",
        "export",
        "layers",
        "models",
        "paper",
        "train",
        "variants",
    ):
        return importlib.import_module(f"keras_vit.{name}")
    if name == "finetune":
        return importlib.import_module("keras_vit.train.finetune").finetune
    for home in (
        ("applications", "imagenet", "models.ends", "weights.save") if name in __all__ else ()
    ):
        found = vars(importlib.import_module(f"keras_vit.{home}"))
        if name in found:
            return found[name]
    raise AttributeError(f"module 'keras_vit' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(
        [*__all__, "analyze", "cost", "data", "evaluate", "export", "finetune", "paper", "train"]
    )
