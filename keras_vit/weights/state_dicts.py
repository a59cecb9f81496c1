"""The weights of a model among all that a training script saved.

A training checkpoint has the state dict of the model under a key of the script, beside an
optimizer, a step, metrics, and often averaged weights. Models are evaluated with the averaged
weights (EMA), so these are preferred.

Source: timm 1.0.31 `models/_helpers.py` (the order of the keys), `models/eva.py` (keys inside of
    keys); facebookresearch/dino `main_dino.py`; facebookresearch/ijepa `src/train.py`.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from absl import logging

from keras_vit.weights.refusal import join_first

_AVERAGED = ("state_dict_ema", "model_ema", "ema")
_PLAIN = ("state_dict", "module", "model")
# DINO and DINOv2 publish the teacher, I-JEPA the target encoder.
_PUBLISHED = ("teacher", "target_encoder", "encoder")
# MMEngine exchanges the two before it saves: its `ema_state_dict` holds the weights of the last
# step. Such a key is named in the warning, and is not read.
_LIKE_AVERAGED = re.compile(r"(.*_)?ema(_.*)?")


def find_weights(path: Path, content: Mapping[Any, Any], tensor: type) -> Mapping[Any, Any]:
    """Returns the part of a checkpoint that holds the weights, or `content` if no part does.

    The known keys are looked up in `content`, and in the part that one of them holds. If there are
    several sets of weights, a warning names the one that is read.

    Args:
        path: The file, for messages.
        content: The dictionary that was saved.
        tensor: Type of the tensors in it.

    Example:
        >>> find_weights(Path("last.pth"), {"model": {"norm.bias": 0.5}, "best_acc1": 71.0}, float)
        {'norm.bias': 0.5}
    """
    places = (*_AVERAGED, *_PLAIN, *_PUBLISHED)
    key = _find_state_dict(content, places, tensor) or _find_nested(content, tensor)
    if key is None:
        return content
    part = _take(path, content, key, tensor)
    inner = None
    if not _has_dotted_names(part, tensor):
        inner = _find_state_dict(part, (*_AVERAGED, *_PLAIN), tensor)
    return part if inner is None else _take(path, part, inner, tensor)


def _take(path: Path, content: Mapping[Any, Any], key: str, tensor: type) -> Mapping[Any, Any]:
    _warn_of_others(path, content, key, tensor)
    logging.info("%s: only its part %r is read.", path, key)
    return content[key]


def _find_state_dict(
    content: Mapping[Any, Any], places: tuple[str, ...], tensor: type
) -> str | None:
    return next((key for key in places if _is_state_dict(content.get(key), tensor)), None)


def _find_nested(content: Mapping[Any, Any], tensor: type) -> str | None:
    """Returns the key of nested dictionaries of tensors, or of tensors without a module.

    Beside tensors, such a key may be a module of the model, such as its encoder. Averages come
    last, because their settings may be tensors too.
    """
    if any(isinstance(value, tensor) for value in content.values()):
        return None
    places = (*_PLAIN, *_PUBLISHED, *_AVERAGED)
    return next((key for key in places if _holds_tensors(content.get(key), tensor)), None)


def _is_state_dict(value: Any, tensor: type) -> bool:
    """Returns whether a value is a state dict, or has one under a known key."""
    if not isinstance(value, dict):
        return False
    inside = (value.get(key) for key in (*_AVERAGED, *_PLAIN))
    return any(_has_dotted_names(part, tensor) for part in (value, *inside))


def _has_dotted_names(part: Any, tensor: type) -> bool:
    """Returns whether tensors have names such as `norm.bias`, as in the state dict of a module."""
    return isinstance(part, dict) and any(
        isinstance(value, tensor) and "." in str(key) for key, value in part.items()
    )


def _holds_tensors(value: Any, tensor: type) -> bool:
    """Returns whether there is a tensor in nested dictionaries, each of which is visited once."""
    waiting, seen = [value], set()
    while waiting:
        value = waiting.pop()
        if isinstance(value, tensor):
            return True
        if isinstance(value, dict) and id(value) not in seen:
            seen.add(id(value))
            waiting.extend(value.values())
    return False


def _warn_of_others(path: Path, content: Mapping[Any, Any], key: str, tensor: type) -> None:
    """Warns if there are other sets of weights than those of `key`, which are read."""
    # The files of DINO and I-JEPA always have two, and their evaluations read the same one.
    places = () if key in _PUBLISHED else (*_AVERAGED, *_PLAIN, *_PUBLISHED)
    others = [
        repr(name)
        for name, value in content.items()
        if name != key
        and (
            (name in places and _holds_tensors(value, tensor))
            or (_LIKE_AVERAGED.fullmatch(str(name)) and isinstance(value, dict) and value)
        )
    ]
    if others:
        logging.warning(
            "%s holds several sets of weights: those under %r are read, not %s. To read others, "
            "save them alone in PyTorch with `safetensors.torch.save_file(checkpoint[KEY], path)`.",
            path,
            key,
            join_first(others),
        )
