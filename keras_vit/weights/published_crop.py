"""The crop of the published evaluation of weights."""

import os
from pathlib import Path

from keras_vit.weights import configs, download, hub, source

# Names of transforms in the catalog, and of policies in the pipeline.
_POLICIES = {"resize_small_crop": "resize_shorter"}


def find_crop(model: str, weights: str | os.PathLike) -> str | None:
    """Returns the crop with which weights were evaluated by those who published them.

    It is that of the catalog, or of the `preprocessor_config.json` or timm's `config.json` beside
    the weights.

    Args:
        model: Public name of the model.
        weights: Tag, file or URL.

    Returns:
        A policy of `keras_vit.data.transforms.eval_crop`, or None if it is not known.

    Raises:
        ValueError: If there are no such weights, or a JSON file beside them is not valid.

    Example:
        >>> find_crop("DeiT_B16", "in1k"), find_crop("ViT_B16", "imagenet")
        ('central:0.9', 'resize')
    """
    found = source.find(model, weights)
    if found.row is not None:
        return _POLICIES.get(found.row.transform, found.row.transform)
    path = Path(found.weights)
    if found.weights.startswith(hub.SCHEME):
        path = download.fetch(found.weights)
    return configs.read_crop(path) if path.exists() else None
