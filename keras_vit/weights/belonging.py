"""Which arrays of a PyTorch file belong to the image model, and their names without prefixes.

Files also hold decoders, text towers, projection heads of self-supervised training, mask tokens and
constants. These are not read.

Source: facebookresearch/dino `eval_knn.py`; bytedance/ibot `models/head.py`; facebookresearch/mae
    `models_mae.py`; dinov3@6876159 `layers/`; open_clip 3.3.0 `model.py`, `timm_model.py`; timm
    1.0.31 `vision_transformer.py`, `eva.py`; transformers 5.24.0; PyTorch 2.13
    `torch/optim/swa_utils.py`.
"""

import re
from collections.abc import Iterable

# Prefix -> names beside it that do not belong to the image model.
_PREFIXES = {
    "module.": None,
    "_orig_mod.": None,
    "teacher.": r"(student|optimizer|fp16_scaler|dino_loss)\.",
    # A classifier has the names `head.weight` and `head.bias`; other heads are projectors.
    "backbone.": r"(dino|ibot)_(head|loss)\.|head\.(?!(weight|bias)$)",
    "vision_encoder.": r"",  # TIPSv2: everything beside it is of the text tower
    "visual.trunk.": r"(?!visual\.head\.proj\.)",  # a tower of timm in OpenCLIP
    "visual.": r"",
    "vision_model.": r"text_model\.|text_projection\.|logit_(scale|bias)$",
    "vit.": None,
    "deit.": None,
    "ijepa.": None,
    "dinov2.": None,
    "dinov2_with_registers.": None,
    "model.": None,
}
_RENAMED = {f"visual.head.proj.{leaf}": f"head.{leaf}" for leaf in ("weight", "bias")}
_MAX_PREFIXES = 8
# Arrays that the forward pass of the image model does not read, by their names without prefixes.
_UNREAD = re.compile(
    r"(embeddings\.)?mask_token|decoder[._].*"  # masked images in pre-training
    r"|rope_embed\.periods|.*\.bias_mask|local_cls_norm\..*|projectors\..*"  # DINOv3
    r"|.*position_ids|input_resolution|context_length|vocab_size"  # CLIP
    r"|n_averaged|(.*\.)?num_batches_tracked"  # counters of torch
)


def strip(names: Iterable[str]) -> dict[str, str]:
    """Returns {name in a file: name without prefixes} of the arrays that belong to the image model.

    Example:
        >>> strip(["module.backbone.cls_token", "module.head.mlp.0.weight", "mask_token"])
        {'module.backbone.cls_token': 'cls_token'}
    """
    plain = {name: name for name in names}
    for _ in range(_MAX_PREFIXES):
        found = [p for p in _PREFIXES if any(name.startswith(p) for name in plain.values())]
        if not found:
            break
        prefix, beside = found[0], _PREFIXES[found[0]]
        plain = {
            name: _RENAMED.get(short, short.removeprefix(prefix))
            for name, short in plain.items()
            if short.startswith(prefix) or beside is None or not re.match(beside, short)
        }
    return {name: short for name, short in plain.items() if not _UNREAD.fullmatch(short)}
