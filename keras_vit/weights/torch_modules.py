"""The arrays of PyTorch's modules ↔ canonical arrays: suffixes, ranks and conversions per kind.

Dense kernels of PyTorch are (out, in) and convolutions OIHW. `timm_names.py`,
`huggingface_names.py` and `openclip_names.py` name the modules.
"""

import numpy as np

from keras_vit.weights.renaming import (
    Leaf,
    merge_first,
    merge_last,
    split_first,
    split_last,
)

POSITIONS = "Transformer/posembed_input/pos_embedding"
BLOCK = "Transformer/encoderblock_{}"
ATTENTION = f"{BLOCK}/MultiHeadDotProductAttention_0"
MLP = f"{BLOCK}/MlpBlock_0"
POOL = "MAPHead_0"
POOL_ATTENTION = f"{POOL}/MultiHeadDotProductAttention_0"
QKV = ("/query", "/key", "/value")
GATED = ("/Gate_0", "/Dense_0")  # the halves of SwiGLU's first layer, where it is one array


def _split_heads(x: np.ndarray, num_heads: int) -> np.ndarray:
    return split_last(x.T, num_heads)


def _merge_heads(x: np.ndarray) -> np.ndarray:
    return merge_last(x).T


_BIAS = Leaf(".bias", "/bias", (1, 1))
_HEAD_KERNEL = Leaf(".weight", "/kernel", (2, 3), _split_heads, _merge_heads)

LEAVES: dict[str, tuple[Leaf, ...]] = {
    "array": (Leaf("", "", (3, 3)),),
    "vector": (Leaf("", "", (1, 3), lambda x, _: x[None, None], lambda x: x[0, 0]),),
    "table": (Leaf("", "", (2, 3), lambda x, _: x[None], lambda x: x[0]),),
    "norm": (Leaf(".weight", "/scale", (1, 1)), _BIAS),
    # layer scale, under the names of timm, Hugging Face and Meta
    "gamma": (Leaf(".gamma", "/scale", (1, 1)),),
    "lambda1": (Leaf(".lambda1", "/scale", (1, 1)),),
    "scale": (Leaf("", "/scale", (1, 1)),),
    "dense": (Leaf(".weight", "/kernel", (2, 2), lambda x, _: x.T, lambda x: x.T), _BIAS),
    "projection": (Leaf("", "/kernel", (2, 2)),),
    "conv": (
        Leaf(
            ".weight",
            "/kernel",
            (4, 4),
            lambda x, _: x.transpose(2, 3, 1, 0),
            lambda x: x.transpose(3, 2, 0, 1),
        ),
        _BIAS,
    ),
    # A "pointwise" convolution is a dense layer in our models.
    "pointwise": (
        Leaf(
            ".weight",
            "/kernel",
            (4, 2),
            lambda x, _: x.reshape(x.shape[:2]).T,
            lambda x: x.T[:, :, None, None],
        ),
        _BIAS,
    ),
    "heads": (_HEAD_KERNEL, Leaf(".bias", "/bias", (1, 2), split_first, merge_first)),
    "head_kernels": (_HEAD_KERNEL,),
    "head_bias": (Leaf("", "/bias", (1, 2), split_first, merge_first),),
    # `torch.nn.MultiheadAttention`
    "in_proj": (
        Leaf("_weight", "/kernel", (2, 3), _split_heads, _merge_heads),
        Leaf("_bias", "/bias", (1, 2), split_first, merge_first),
    ),
    "out": (
        Leaf(
            ".weight",
            "/kernel",
            (2, 3),
            lambda x, heads: split_first(x.T, heads),
            lambda x: merge_first(x).T,
        ),
        _BIAS,
    ),
}
