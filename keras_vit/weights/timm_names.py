"""timm's names of the arrays of ViTs, hybrids and ResNets, and those of Meta's files.

In the tables, `{}` is the number of a block. Meta's files (DINO, DINOv2, DINOv3, MAE, DeiT, I-JEPA)
have timm's names but for a few, which are read and never written.

Source: timm 1.0.31 `vision_transformer.py`, `deit.py`, `eva.py`, `vision_transformer_hybrid.py`,
    `resnetv2.py`, `layers/attention_pool.py`, `layers/mlp.py`; dinov2@b8931f7 `layers/`;
    dinov3@6876159 `layers/`, `models/vision_transformer.py`.
"""

import re
from collections.abc import Iterable, Mapping

import numpy as np

from keras_vit.weights import layouts
from keras_vit.weights.renaming import Rows, Rule, make_rules, use_two_digits
from keras_vit.weights.torch_modules import (
    ATTENTION,
    BLOCK,
    GATED,
    LEAVES,
    MLP,
    POOL,
    POOL_ATTENTION,
    POSITIONS,
    QKV,
)

_ENCODER: Rows = (
    ("cls_token", "cls", "array"),
    ("dist_token", "dist", "array"),
    ("reg_token", "registers", "array"),
    ("pos_embed", POSITIONS, "array"),
    ("patch_embed.proj", "embedding", "conv"),
    ("norm_pre", "Transformer/norm_before_blocks", "norm"),
    ("blocks.{}.norm1", f"{BLOCK}/LayerNorm_0", "norm"),
    ("blocks.{}.attn.proj", f"{ATTENTION}/out", "out"),
    ("blocks.{}.norm2", f"{BLOCK}/LayerNorm_1", "norm"),
    ("blocks.{}.mlp.fc2", f"{MLP}/Dense_1", "dense"),
    ("norm", "Transformer/encoder_norm", "norm"),
    ("fc_norm", "pooled_norm", "norm"),
    ("attn_pool.latent", f"{POOL}/probe", "array"),
    ("attn_pool.q", f"{POOL_ATTENTION}/query", "heads"),
    ("attn_pool.kv", POOL_ATTENTION, "heads", ("/key", "/value")),
    ("attn_pool.proj", f"{POOL_ATTENTION}/out", "out"),
    ("attn_pool.norm", f"{POOL}/LayerNorm_0", "norm"),
    *((f"attn_pool.mlp.fc{i + 1}", f"{POOL}/MlpBlock_0/Dense_{i}", "dense") for i in (0, 1)),
    ("head", "head", "dense"),
    ("head_dist", "head_dist", "dense"),
)
# `VisionTransformer`
_VIT: Rows = (
    ("blocks.{}.attn.qkv", ATTENTION, "heads", QKV),
    ("blocks.{}.ls1", f"{BLOCK}/LayerScale_0", "gamma"),
    ("blocks.{}.ls2", f"{BLOCK}/LayerScale_1", "gamma"),
)
_PLAIN_MLP: Rows = (("blocks.{}.mlp.fc1", f"{MLP}/Dense_0", "dense"),)
_PACKED_MLP: Rows = (("blocks.{}.mlp.fc1", MLP, "dense", GATED),)
# `Eva`, timm's class of DINOv3
_EVA: Rows = (
    ("blocks.{}.attn.qkv", ATTENTION, "head_kernels", QKV),
    ("blocks.{}.attn.q_bias", f"{ATTENTION}/query", "head_bias"),
    ("blocks.{}.attn.v_bias", f"{ATTENTION}/value", "head_bias"),
    ("blocks.{}.gamma_1", f"{BLOCK}/LayerScale_0", "scale"),
    ("blocks.{}.gamma_2", f"{BLOCK}/LayerScale_1", "scale"),
    ("blocks.{}.mlp.fc1_g", f"{MLP}/Gate_0", "dense"),
    ("blocks.{}.mlp.fc1_x", f"{MLP}/Dense_0", "dense"),
)
_EVA_PLAIN_MLP: Rows = (*_EVA[:-2], *_PLAIN_MLP)
# Read alone: names of Meta's files, and timm's tanh layer, which timm has removed.
_META: Rows = (
    ("register_tokens", "registers", "array"),  # DINOv2
    ("storage_tokens", "registers", "array"),  # DINOv3
    ("blocks.{}.mlp.w12", MLP, "dense", GATED),
    ("blocks.{}.mlp.w1", f"{MLP}/Gate_0", "dense"),
    ("blocks.{}.mlp.w2", f"{MLP}/Dense_0", "dense"),
    ("blocks.{}.mlp.w3", f"{MLP}/Dense_1", "dense"),
    ("pre_logits.fc", "pre_logits", "dense"),
)

_ROOT: Rows = (("conv", "conv_root", "conv"), ("norm", "gn_root", "norm"))
_UNITS: Rows = (
    *(
        (f"stages.{{}}.blocks.{{}}.conv{i}", f"block{{}}/unit{{}}/conv{i}", "conv")
        for i in (1, 2, 3)
    ),
    *((f"stages.{{}}.blocks.{{}}.norm{i}", f"block{{}}/unit{{}}/gn{i}", "norm") for i in (1, 2, 3)),
    ("stages.{}.blocks.{}.downsample.conv", "block{}/unit{}/conv_proj", "conv"),
    ("stages.{}.blocks.{}.downsample.norm", "block{}/unit{}/gn_proj", "norm"),
)
_BIT: Rows = (("stem.conv", "root_block/conv_root", "conv"), ("norm", "norm-pre-head", "norm"))
_RESNET_HEAD: Rows = (("head.fc", "head", "pointwise"),)


def make_reading_rules(arrays: Mapping[str, np.ndarray]) -> list[Rule]:
    """Returns the rules for the arrays of a file, which may be timm's or Meta's."""
    mlp = _PACKED_MLP if _is_packed(arrays) else _PLAIN_MLP
    # Rows of `VisionTransformer` come last: of two rows with the same foreign name they are used.
    return _make_rules(_detect_family(arrays), _META + _EVA + _ENCODER + _VIT + mlp)


def make_writing_rules(arrays: Iterable[str], rotary: bool) -> list[Rule]:
    """Returns the rules for canonical arrays; with rotary positions, timm's class is `Eva`."""
    names = list(arrays)
    is_gated = any("/Gate_0/" in name for name in names)
    if rotary:
        return _make_rules("vit", _ENCODER + (_EVA if is_gated else _EVA_PLAIN_MLP))
    mlp = _PACKED_MLP if is_gated else _PLAIN_MLP
    return _make_rules(layouts.family(names), _ENCODER + _VIT + mlp)


def _make_rules(family: str, vit: Rows) -> list[Rule]:
    if family == "bit":
        return make_rules(_BIT + _RESNET_HEAD, LEAVES) + make_rules(
            use_two_digits(_UNITS), LEAVES, offset=1
        )
    if family == "resnet":
        root = make_rules(_ROOT, LEAVES, "stem.") + make_rules(_RESNET_HEAD, LEAVES)
        return root + make_rules(_UNITS, LEAVES, offset=1)
    backbone, rules = "patch_embed.backbone.", make_rules(vit, LEAVES)
    # Without residual units timm's backbone is the root itself.
    root = make_rules(_ROOT, LEAVES, backbone if family == "stem" else f"{backbone}stem.")
    return rules + root + make_rules(_UNITS, LEAVES, backbone, offset=1)


def _detect_family(names: Iterable[str]) -> str:
    names = list(names)
    if any(name.startswith("patch_embed.backbone.") for name in names):
        return (
            "hybrid"
            if any(re.match(r"patch_embed\.backbone\.(stem|stages)\.", name) for name in names)
            else "stem"
        )
    if any(name.startswith(("stem.", "stages.")) for name in names):
        return "resnet" if any(name.startswith("stem.norm.") for name in names) else "bit"
    return "vit"


def _is_packed(arrays: Mapping[str, np.ndarray]) -> bool:
    """Returns whether the first layer of the MLP is twice as wide as the last one reads: SwiGLU."""
    first, last = (arrays.get(f"blocks.0.mlp.{name}.weight") for name in ("fc1", "fc2"))
    if first is None or last is None or first.ndim != 2 or last.ndim != 2:
        return False
    return first.shape[0] == 2 * last.shape[1]
