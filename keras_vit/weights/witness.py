"""The forward pass of each published model in NumPy, computed from the arrays of a checkpoint.

`python -m keras_vit verify` compares the Keras models with it. It shares no code with them, imports
no framework, and is written to be checked by reading. Names are canonical: those of the current
Google linen code (see `layouts.py`). Everything is float32. Constants come from the variant, sizes
from the arrays. Nothing is resized: the position tables must match the images. Fixed,
two-dimensional and per-block position embeddings are not implemented, because no published
checkpoint has them.

Letters: B batch, H W image or map, C channels, N tokens, D width, A heads, K head size, F MLP
width, Y classes.

Sources: arXiv:2010.11929 (ViT), equations 1-8, D.4, D.6; arXiv:1912.11370 (BiT), section 3.3;
google-research/vision_transformer, models_vit.py and models_resnet.py; google-research/big_vision,
models/vit.py (attention pooling) and bit_paper.py. Other families: arXiv:2103.17239 (layer scale),
arXiv:2002.05202 (SwiGLU), arXiv:2309.16588 (registers), arXiv:2508.10104 (DINOv3).
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Literal

import numpy as np

from keras_vit.variants import Classifier, Gelu, ResNetVariant, ViTVariant
from keras_vit.weights.array_names import check_names, unit_names

Arrays = dict[str, np.ndarray]
Padding = int | Literal["same"]

_QUERY = "MultiHeadDotProductAttention_0/query/kernel"

relu = partial(np.maximum, np.float32(0.0))


def forward(
    arrays: Mapping[str, np.ndarray],
    images: np.ndarray,
    variant: ViTVariant | ResNetVariant,
    *,
    gelu: Gelu | None = None,
    norm_epsilon: float | None = None,
    classifier: Classifier | None = None,
    pool_fill: float = -math.inf,
) -> Arrays:
    """Returns all named activations of a model, in order, from the images to the logits.

    Without `classifier`, the arrays select the pooling: attention pooling if there is `MAPHead_0`;
    class token and mean if the head has twice the width; the class token if there is `cls` and the
    row reads it; else the mean of the patches. `pooled_norm`, `pre_logits` and `head` are computed if present.

    Args:
        arrays: Arrays by canonical name.
        images: (B, H, W, 3) float, pixels scaled to [-1, 1].
        variant: Row of the arrays in `VIT_VARIANTS` or `RESNET_VARIANTS`.
        gelu: Form of GELU, if it differs from that of the row. Not for a ResNet.
        norm_epsilon: Epsilon of layer normalization, if it differs from that of the row; of group
            normalization for a ResNet.
        classifier: What the head reads, if the arrays do not tell. Not for a ResNet.
        pool_fill: Padding value of the max-pool in a pre-activation root: minus infinity as in
            big_vision's bit_paper.py, or 0 as in the original BiT code. Other roots ignore it.

    Returns:
        ViT: a stem's "root", "block1", ...; "embedding" (B, N, D); "posembed_input" and
            "encoderblock_0", ... (B, prefix + N, D); "encoder_norm"; "map_head" (B, D) if pooled by
            attention; "pre_logits", "logits" (B, Y).
        ResNet: "root", "block1", ...; "norm_pre_head" if pre-activation; "pre_logits" (pooled);
            "logits".

    Raises:
        ValueError: If arrays are missing or unused, or the images do not match the position table.

    Example:
        >>> from keras_vit.variants import VIT_VARIANTS
        >>> forward({}, np.zeros((1, 224, 224, 3)), VIT_VARIANTS["ViT_Ti16"])  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        ValueError: The arrays are not those of ViT_Ti16. Missing (197):
            Transformer/encoder_norm/bias, ...
    """
    _check_images(images)
    check_names(arrays, variant)
    arrays = {name: np.asarray(array, np.float32) for name, array in arrays.items()}
    if norm_epsilon is not None:
        variant = replace(variant, norm_epsilon=norm_epsilon)
    if isinstance(variant, ViTVariant):
        variant = replace(variant, gelu=gelu or variant.gelu)
        return _run_vit(arrays, images.astype(np.float32), variant, classifier)
    if gelu is not None:
        raise ValueError(
            f"`gelu` must be None for a ResNet, which has no GELU. Received: gelu={gelu!r}."
        )
    return _run_resnet(arrays, images.astype(np.float32), variant, pool_fill)


def _run_vit(
    arrays: Arrays, x: np.ndarray, variant: ViTVariant, classifier: Classifier | None
) -> Arrays:
    """Computes equations 1-4 of the paper. A hybrid takes patches of the stem's
    map (section 3.1).
    """
    _check_sizes(arrays, x, variant)
    outputs: Arrays = {}
    mean, std = (np.array(v, np.float32) for v in (variant.pixel_mean, variant.pixel_std))
    if not ((mean == 0.5).all() and (std == 0.5).all()):
        x = outputs["pixel_normalization"] = ((x + 1) / 2 - mean) / std
    if variant.stem:
        outputs = _run_trunk(arrays, x, variant.stem)
        x = next(reversed(outputs.values()))
    x = convolve(x, arrays["embedding/kernel"], stride=variant.patch_size)
    if variant.patch_bias:
        x = x + arrays["embedding/bias"]
    grid = x.shape[1:3]
    x = outputs["embedding"] = x.reshape(len(x), -1, variant.width)
    x = add_prefix_and_positions(x, arrays, variant, outputs)
    num_prefix = x.shape[1] - math.prod(grid)
    if variant.norm_before_blocks:
        p = _select(arrays, "Transformer/norm_before_blocks")
        x = outputs["norm_before_blocks"] = layer_norm(x, p, variant.norm_epsilon)
    turn = partial(rotate, grid=grid, num_prefix=num_prefix) if variant.rotary else None
    for index in range(variant.depth):
        name = f"encoderblock_{index}"
        p = _select(arrays, f"Transformer/{name}")
        x = outputs[name] = (
            axial_block(x, p, variant, grid)
            if variant.axial
            else transformer_block(x, p, variant, turn)
        )
    if "Transformer/encoder_norm/scale" in arrays:
        x = outputs["encoder_norm"] = layer_norm(
            x, _select(arrays, "Transformer/encoder_norm"), variant.norm_epsilon
        )
    reads = classifier or _find_classifier(arrays, variant)
    return outputs | _run_head(arrays, x, variant, num_prefix, reads)


def _find_classifier(arrays: Arrays, variant: ViTVariant) -> Classifier:
    """Returns what the head reads, as the arrays tell."""
    if "MAPHead_0/probe" in arrays:
        return "map"
    if "head/kernel" in arrays and arrays["head/kernel"].shape[0] == 2 * variant.width:
        return "token_gap"  # the linear classifiers of DINOv2
    return "gap" if "cls" not in arrays or variant.classifier == "gap" else "token"


def add_prefix_and_positions(
    x: np.ndarray, arrays: Arrays, variant: ViTVariant, outputs: Arrays
) -> np.ndarray:
    """Equation 1: class token, distillation token and positions; then registers. (B, T + N, D)."""
    prefix = [np.tile(arrays[name], (len(x), 1, 1)) for name in ("cls", "dist") if name in arrays]
    table = arrays.get("Transformer/posembed_input/pos_embedding")
    if variant.class_position:
        x = np.concatenate([*prefix, x], axis=1)
        if table is not None:
            x = outputs["posembed_input"] = x + table
    else:
        x = outputs["posembed_input"] = x + table
        x = np.concatenate([*prefix, x], axis=1)
    if not variant.num_registers:
        return x
    registers = np.tile(arrays["registers"], (len(x), 1, 1))
    return np.concatenate([x[:, : len(prefix)], registers, x[:, len(prefix) :]], axis=1)


def _run_head(
    arrays: Arrays, x: np.ndarray, variant: ViTVariant, num_prefix: int, reads: Classifier
) -> Arrays:
    """Computes pooling, its norm, the tanh layer and the final layer."""
    outputs: Arrays = {}
    head, mean = _select(arrays, "head"), x[:, num_prefix:].mean(axis=1)
    second = x[:, 1]
    if reads == "map":
        x = outputs["map_head"] = attention_pooling(x, _select(arrays, "MAPHead_0"), variant)
    elif reads == "token_gap":
        x = np.concatenate([x[:, 0], mean], axis=-1)
    else:
        x = mean if reads == "gap" else x[:, 0]
    if "pooled_norm/scale" in arrays:
        p = _select(arrays, "pooled_norm")
        x = outputs["pooled_norm"] = layer_norm(x, p, variant.norm_epsilon)
    if "pre_logits/kernel" in arrays:
        x = outputs["pre_logits"] = np.tanh(dense(x, _select(arrays, "pre_logits")))
    if head:
        outputs["logits"] = dense(x, head)
    if "head_dist/kernel" in arrays:
        distilled = dense(second, _select(arrays, "head_dist"))
        outputs["logits"] = (outputs["logits"] + distilled) / 2
    return outputs


def _run_resnet(arrays: Arrays, x: np.ndarray, variant: ResNetVariant, pool_fill: float) -> Arrays:
    """Computes trunk, pooling and linear head.

    A pre-activation ResNet has another norm before the pooling, because its last unit ends with a
    sum.
    """
    outputs = _run_trunk(arrays, x, variant, pool_fill)
    x = next(reversed(outputs.values()))
    if variant.preactivation:
        x = outputs["norm_pre_head"] = relu(
            group_norm(x, _select(arrays, "norm-pre-head"), variant.norm_epsilon)
        )
    x = outputs["pre_logits"] = x.mean(axis=(1, 2))
    if "head/kernel" in arrays:
        outputs["logits"] = dense(x, _select(arrays, "head"))
    return outputs


def _run_trunk(
    arrays: Arrays, x: np.ndarray, variant: ResNetVariant, pool_fill: float = -math.inf
) -> Arrays:
    """Computes root and stages: models_vit.py, models_resnet.py; bit_paper.py if pre-activation."""
    outputs: Arrays = {}
    if variant.preactivation:
        x = std_conv(x, arrays["root_block/conv_root/kernel"], variant, stride=2)
        x = max_pool(x, size=3, stride=2, padding=1, fill=pool_fill)
    else:
        x = std_conv(x, arrays["conv_root/kernel"], variant, stride=2)
        x = relu(group_norm(x, _select(arrays, "gn_root"), variant.norm_epsilon))
        x = max_pool(x, size=3, stride=2, padding="same")
    outputs["root"] = x
    unit = preactivation_unit if variant.preactivation else postactivation_unit
    for stage, names in enumerate(unit_names(variant), start=1):
        for index, name in enumerate(names):
            x = unit(x, _select(arrays, name), variant, stride=2 if stage > 1 and index == 0 else 1)
        outputs[f"block{stage}"] = x
    return outputs


Turn = Callable[[np.ndarray], np.ndarray]


def transformer_block(
    x: np.ndarray, p: Arrays, variant: ViTVariant, turn: Turn | None = None
) -> np.ndarray:
    """Equations 2 and 3: pre-norm attention, then pre-norm MLP, both residual. (B, N, D).

    Layer scale (arXiv:2103.17239, equation 1) multiplies each channel of both branches.
    """
    scales = [p.get(f"LayerScale_{i}/scale", np.float32(1)) for i in (0, 1)]
    normed = layer_norm(x, _select(p, "LayerNorm_0"), variant.norm_epsilon)
    x = x + scales[0] * attention(
        normed, normed, _select(p, "MultiHeadDotProductAttention_0"), turn
    )
    normed = layer_norm(x, _select(p, "LayerNorm_1"), variant.norm_epsilon)
    run = gated_mlp if variant.mlp == "swiglu" else partial(mlp, gelu_form=variant.gelu)
    return x + scales[1] * run(normed, _select(p, "MlpBlock_0"))


def axial_block(x: np.ndarray, p: Arrays, variant: ViTVariant, grid: tuple[int, ...]) -> np.ndarray:
    """D.6: a block on each row of the grid separately, then one on each column. (B, N, D)."""
    mixers = [
        partial(transformer_block, p=_select(p, half), variant=variant)
        for half in ("row", "column")
    ]
    return along_axes(x.reshape(len(x), *grid, -1), *mixers).reshape(x.shape)


def along_axes(x: np.ndarray, *mixers: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
    """Applies one function to each row of a grid (B, R, C, D), and another to each column."""
    for mix in mixers:
        x = mix(x.reshape(-1, *x.shape[2:])).reshape(x.shape).swapaxes(1, 2)
    return x


def attention(
    queries: np.ndarray, x: np.ndarray, p: Arrays, turn: Turn | None = None
) -> np.ndarray:
    """Equations 5-8 and D.4: attention of queries (B, M, D) to tokens (B, N, D), to (B, M, D).

    Biases that are not among the arrays are zero. `turn` rotates queries and keys.
    """

    def project(tokens: np.ndarray, name: str) -> np.ndarray:
        bias = p.get(f"{name}/bias", np.float32(0))
        return np.tensordot(tokens, p[f"{name}/kernel"], axes=1) + bias

    query_BMAK, key_BNAK = project(queries, "query"), project(x, "key")
    value_BNAK = project(x, "value")
    if turn is not None:
        query_BMAK, key_BNAK = turn(query_BMAK), turn(key_BNAK)
    query_BMAK = query_BMAK / math.sqrt(query_BMAK.shape[-1])
    scores_BAMN = query_BMAK.transpose(0, 2, 1, 3) @ key_BNAK.transpose(0, 2, 3, 1)
    if "relative_embedding" in p:
        places, table = np.arange(x.shape[1]), p["relative_embedding"]
        if len(table) != 2 * len(places) - 1:
            raise ValueError(
                f"The relative positions are for {len(table) // 2 + 1} tokens along an axis. "
                f"Received: {len(places)}. Use images of the size that the file was trained with."
            )
        table_MNK = table[places[:, None] - places + len(places) - 1]
        scores_BAMN += np.einsum("bmak,mnk->bamn", query_BMAK, table_MNK)
    found_BAMK = softmax(scores_BAMN) @ value_BNAK.transpose(0, 2, 1, 3)
    return np.tensordot(found_BAMK, p["out/kernel"], axes=((1, 3), (0, 1))) + p["out/bias"]


def attention_pooling(x: np.ndarray, p: Arrays, variant: ViTVariant) -> np.ndarray:
    """big_vision's MAPHead: attention of a learned query, then an MLP. (B, N, D) to (B, D)."""
    probe = np.tile(p["probe"], (len(x), 1, 1))
    x = attention(probe, x, _select(p, "MultiHeadDotProductAttention_0"))
    normed = layer_norm(x, _select(p, "LayerNorm_0"), variant.norm_epsilon)
    return (x + mlp(normed, _select(p, "MlpBlock_0"), variant.gelu))[:, 0]


def mlp(x: np.ndarray, p: Arrays, gelu_form: str) -> np.ndarray:
    """Two dense layers with GELU between them (section 3.1). (B, N, D) to (B, N, F) and back."""
    return dense(gelu(dense(x, _select(p, "Dense_0")), gelu_form), _select(p, "Dense_1"))


def gated_mlp(x: np.ndarray, p: Arrays) -> np.ndarray:
    """SwiGLU (arXiv:2002.05202, equation 6): the hidden layer times silu of the gate."""
    gate = dense(x, _select(p, "Gate_0"))
    hidden = gate / (1.0 + np.exp(-gate)) * dense(x, _select(p, "Dense_0"))
    return dense(hidden, _select(p, "Dense_1"))


def rotate(x: np.ndarray, grid: tuple[int, int], num_prefix: int) -> np.ndarray:
    """Rotates queries or keys (B, N, A, K) by the places of their patches (arXiv:2508.10104).

    As a complex number z = x[k] + i x[k + K / 2], each pair is multiplied by exp(i angle). The first
    half of the pairs turns with the row, the other with the column. Prefix tokens do not turn.
    """
    half = x.shape[-1] // 2
    periods = 100.0 ** (np.arange(half // 2) / (half // 2))
    places = [2 * (np.arange(n) + 0.5) / n - 1 for n in grid]
    angles = np.zeros((*grid, half))
    angles[..., : half // 2] = 2 * np.pi * places[0][:, None, None] / periods
    angles[..., half // 2 :] = 2 * np.pi * places[1][None, :, None] / periods
    turned = (x[..., :half] + 1j * x[..., half:]).astype(np.complex128)
    turned[:, num_prefix:] *= np.exp(1j * angles.reshape(-1, 1, half))
    return np.concatenate([turned.real, turned.imag], axis=-1).astype(x.dtype)


def dense(x: np.ndarray, p: Arrays) -> np.ndarray:
    """A linear layer with a kernel of shape (in, out), and a bias if there is one."""
    return x @ p["kernel"] + p.get("bias", np.float32(0))


def layer_norm(x: np.ndarray, p: Arrays, epsilon: float) -> np.ndarray:
    """Normalizes the last axis, then applies scale and bias (arXiv:1607.06450, equation 4)."""
    return _normalize(x, axis=-1, epsilon=epsilon) * p["scale"] + p["bias"]


def softmax(scores: np.ndarray) -> np.ndarray:
    """Softmax over the last axis. The maximum is subtracted to avoid overflow."""
    exponentials = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return exponentials / exponentials.sum(axis=-1, keepdims=True)


def gelu(x: np.ndarray, form: str) -> np.ndarray:
    """GELU (arXiv:1606.08415, section 2). JAX's default is the tanh form, PyTorch's
    the exact one.
    """
    if form == "tanh":
        return 0.5 * x * (1.0 + np.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * x * x * x)))
    if form == "exact":
        return (0.5 * x * (1.0 + erf(x / math.sqrt(2.0)))).astype(x.dtype)
    if form == "quick":
        return x / (1.0 + np.exp(-1.702 * x))
    raise ValueError(f'`gelu` must be "tanh", "exact" or "quick". Received: gelu={form!r}.')


# NumPy has no erf. `erf(x) / x` is a smooth function of x squared, so the polynomial through the
# values of `math.erf` at the Chebyshev points is accurate to 1e-12 up to |x| = 5. For larger |x|,
# erf differs from 1 by less than 2e-12.
_ERF_RANGE = 5.0
_ERF_OVER_X = np.polynomial.Chebyshev.interpolate(
    lambda squares: np.array([math.erf(root) / root for root in np.sqrt(squares)]),
    deg=36,
    domain=(0.0, _ERF_RANGE**2),
)


def erf(x: np.ndarray) -> np.ndarray:
    """The error function, in float64, with an error of less than 1e-11."""
    x = np.clip(np.asarray(x, np.float64), -_ERF_RANGE, _ERF_RANGE)
    return x * _ERF_OVER_X(x * x)


def postactivation_unit(
    x: np.ndarray, p: Arrays, variant: ResNetVariant, stride: int
) -> np.ndarray:
    """ResNet-v1.5 bottleneck: norm after each convolution, ReLU after the sum (models_resnet.py).

    Axial variants (D.6) have attention instead of the 3 x 3 convolution.
    """
    epsilon = variant.norm_epsilon
    shortcut = x
    if "conv_proj/kernel" in p:
        shortcut = group_norm(
            std_conv(x, p["conv_proj/kernel"], variant, stride), _select(p, "gn_proj"), epsilon
        )
    x = relu(group_norm(std_conv(x, p["conv1/kernel"], variant), _select(p, "gn1"), epsilon))
    x = (
        axial_attention(x, p, stride)
        if variant.axial
        else std_conv(x, p["conv2/kernel"], variant, stride)
    )
    x = relu(group_norm(x, _select(p, "gn2"), epsilon))
    return relu(
        shortcut + group_norm(std_conv(x, p["conv3/kernel"], variant), _select(p, "gn3"), epsilon)
    )


def axial_attention(x: np.ndarray, p: Arrays, stride: int) -> np.ndarray:
    """Attention along rows, then along columns, then the mean over windows. (B, H, W, C)."""
    row, column = _select(p, "row"), _select(p, "column")
    x = along_axes(
        x, lambda lines: attention(lines, lines, row), lambda lines: attention(lines, lines, column)
    )
    return np.nanmean(_make_windows(x, stride, stride, "same", fill=np.nan), axis=(4, 5))


def preactivation_unit(x: np.ndarray, p: Arrays, variant: ResNetVariant, stride: int) -> np.ndarray:
    """ResNet-v2 bottleneck: norm and ReLU before each convolution (bit_paper.py)."""
    epsilon = variant.norm_epsilon
    shortcut = x
    x = relu(group_norm(x, _select(p, "gn1"), epsilon))
    if "conv_proj/kernel" in p:
        shortcut = std_conv(x, p["conv_proj/kernel"], variant, stride)
    x = std_conv(x, p["conv1/kernel"], variant)
    x = std_conv(
        relu(group_norm(x, _select(p, "gn2"), epsilon)), p["conv2/kernel"], variant, stride
    )
    return shortcut + std_conv(
        relu(group_norm(x, _select(p, "gn3"), epsilon)), p["conv3/kernel"], variant
    )


def std_conv(
    x: np.ndarray, kernel: np.ndarray, variant: ResNetVariant, stride: int = 1
) -> np.ndarray:
    """Convolution with a standardized kernel (arXiv:1903.10520).

    Pre-activation models pad equally on both sides.
    """
    padding = kernel.shape[0] // 2 if variant.preactivation else "same"
    return convolve(
        x, standardize(kernel, variant.std_epsilon, variant.variance_epsilon), stride, padding
    )


def standardize(kernel: np.ndarray, std_epsilon: float, variance_epsilon: float) -> np.ndarray:
    """Standardizes each output channel of a kernel over (height, width, in)."""
    centred = kernel - kernel.mean(axis=(0, 1, 2))
    std = np.sqrt(np.square(centred).mean(axis=(0, 1, 2)) + variance_epsilon)
    return centred / (std + std_epsilon)


def group_norm(x: np.ndarray, p: Arrays, epsilon: float, groups: int = 32) -> np.ndarray:
    """Normalizes each group of channels over the map (arXiv:1803.08494). (B, H, W, C)."""
    grouped = x.reshape(len(x), -1, groups, x.shape[-1] // groups)
    return (
        _normalize(grouped, axis=(1, 3), epsilon=epsilon).reshape(x.shape) * p["scale"] + p["bias"]
    )


def convolve(
    x: np.ndarray, kernel: np.ndarray, stride: int = 1, padding: Padding = 0
) -> np.ndarray:
    """Cross-correlation of (B, H, W, C) with (size, size, C, out), to (B, H', W', out)."""
    return np.tensordot(
        _make_windows(x, kernel.shape[0], stride, padding, fill=0.0),
        kernel,
        axes=((4, 5, 3), (0, 1, 2)),
    )


def max_pool(
    x: np.ndarray, size: int, stride: int, padding: Padding, fill: float = -math.inf
) -> np.ndarray:
    """Maximum of each channel in each window. (B, H, W, C) to (B, H', W', C)."""
    return _make_windows(x, size, stride, padding, fill).max(axis=(4, 5))


def same_padding(length: int, size: int, stride: int) -> tuple[int, int]:
    """Returns the padding before and after for ceil(length / stride) windows (XLA's "SAME").

    If the total is odd, the padding after is larger by 1.
    """
    total = max((math.ceil(length / stride) - 1) * stride + size - length, 0)
    return total // 2, total - total // 2


def _make_windows(
    x: np.ndarray, size: int, stride: int, padding: Padding, fill: float
) -> np.ndarray:
    """Returns a view of all square windows of a padded map: (B, H', W', C, size, size)."""
    _, height, width, _ = x.shape
    if padding == "same":
        rows, columns = same_padding(height, size, stride), same_padding(width, size, stride)
    else:
        rows = columns = (padding, padding)
    x = np.pad(x, ((0, 0), rows, columns, (0, 0)), constant_values=fill)
    return np.lib.stride_tricks.sliding_window_view(x, (size, size), axis=(1, 2))[
        :, ::stride, ::stride
    ]


def _normalize(x: np.ndarray, axis: int | tuple[int, ...], epsilon: float) -> np.ndarray:
    # Subtract the mean first: E[x^2] - E[x]^2 would lose digits of float32.
    centred = x - x.mean(axis=axis, keepdims=True)
    return centred / np.sqrt(np.square(centred).mean(axis=axis, keepdims=True) + epsilon)


def _select(arrays: Mapping[str, np.ndarray], scope: str) -> Arrays:
    """Returns the arrays under a scope, with names relative to it."""
    return {
        name[len(scope) + 1 :]: array
        for name, array in arrays.items()
        if name.startswith(scope + "/")
    }


def _check_images(images: np.ndarray) -> None:
    if images.ndim != 4 or images.shape[-1] != 3 or not np.issubdtype(images.dtype, np.floating):
        raise ValueError(
            "`images` must have shape (B, H, W, 3) and contain floating-point pixels scaled to "
            f"[-1, 1]. Received: shape={images.shape}, dtype={images.dtype}."
        )


def _check_sizes(arrays: Arrays, images: np.ndarray, variant: ViTVariant) -> None:
    """Checks patch size, number of heads and grid, which could differ without any other error."""
    patch, heads = variant.patch_size, variant.num_heads
    table = arrays.get("Transformer/posembed_input/pos_embedding")
    num_learned = ("cls" in arrays) + ("dist" in arrays) if variant.class_position else 0
    patches = None if table is None else table.shape[1] - num_learned
    block = "encoderblock_0/row" if variant.axial else "encoderblock_0"
    kernels = arrays["embedding/kernel"].shape[:2], arrays[f"Transformer/{block}/{_QUERY}"].shape[1]
    if kernels != ((patch, patch), heads):
        raise ValueError(
            f"The arrays are not those of {variant.name}, which has patches of {(patch, patch)} "
            f"and {heads} heads. Received: (patch, heads) = {kernels}. Choose the variant of the "
            "file."
        )
    # Several halvings of the stem that round up equal one division that rounds up.
    stride = variant.stem.total_stride if variant.stem else 1
    sides = [math.ceil(side / stride) for side in images.shape[1:3]]
    grid = tuple(side // patch for side in sides)
    if any(side % patch for side in sides) or patches not in (None, math.prod(grid)):
        raise ValueError(
            f"The images must consist of exactly the {patches} patches of the position table. "
            f"Received: image_size={images.shape[1:3]}, {variant.total_stride} pixels per patch, "
            f"grid={grid}. Resize the images, or the table (`keras_vit.grid`)."
        )
