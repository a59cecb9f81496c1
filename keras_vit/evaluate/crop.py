"""The crop of an evaluation: one that is named, or that of the published evaluation of the weights."""

import os

from keras_vit.data.transforms import check_eval_crop
from keras_vit.keras_file import is_file
from keras_vit.weights.published_crop import find_crop

PUBLISHED = "published"


def choose_crop(eval_crop: str, model: str | os.PathLike, weights: str | os.PathLike | None) -> str:
    """Returns a policy of `keras_vit.data.transforms.eval_crop`, for "published" that of the weights.

    Raises:
        ValueError: If there is no such policy, or no published evaluation of the weights is known.

    Example:
        >>> choose_crop("published", "DeiT_B16", "in1k"), choose_crop("resize", "DeiT_B16", "in1k")
        ('central:0.9', 'resize')
    """
    if eval_crop != PUBLISHED:
        check_eval_crop(eval_crop)
        return eval_crop
    found = None if weights in (None, "none") or is_file(model) else find_crop(str(model), weights)
    if found is None:
        raise ValueError(
            f"No published evaluation of {model} with weights={weights} is known. Choose a crop: "
            f"resize, resize_shorter, resize_crop or central:SHARE."
        )
    return found
