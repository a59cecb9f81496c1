"""Sizes, costs and published weights of the models as plain text, without building a model.

This module formats the output of `python -m keras_vit info`. The numbers come from `variants.py`,
`cost/`, `paper.py` and `weights/catalog.py`. It imports no framework, so the command is fast.
"""

import math
from collections.abc import Iterator

from keras_vit import cost, grid, paper
from keras_vit.cost.rows import Classes, resolve_classes
from keras_vit.options import has_class_token
from keras_vit.variants import FAMILY_VARIANTS, VARIANTS, ResNetVariant, ViTVariant
from keras_vit.weights import catalog

_MIB = 2**20
_DEFAULT_SIZE = (224, 224)


def models_table(image_size: tuple[int, int] | None = None, classes: Classes = "default") -> str:
    """Returns the table of all models, one line each.

    Args:
        image_size: (height, width) in pixels; default: 224 x 224. Rows of models whose patches do
            not tile it contain "-".
        classes: Outputs of the head, or None for no head. Default: 1000, and for CLIP those of its
            projection.

    Example:
        >>> print(models_table().splitlines()[3])
        ViT_Ti16               5,717,416     1.3       22     197        4
    """
    size = image_size or _DEFAULT_SIZE
    table = [["model", "parameters", "GMACs", "MiB", "tokens", "weights"]]
    for name, row in VARIANTS.items():
        published = str(len(catalog.list_weights(name)) or "-")
        table.append([name, *_format_row(row, size, classes), published])
    ends = "with 1,000 classes (CLIP: with the outputs of its projection)"
    if classes != "default":
        ends = _format_head(classes, "classes")
    head = (
        f"{size[0]} x {size[1]} pixels, {ends}; MiB: size of the weights in float32; weights: number "
        "of published tags\n"
    )
    return "\n".join([head, *_align(table)])


def model_card(
    model: str, image_size: tuple[int, int] | None = None, classes: Classes = "default"
) -> str:
    """Returns a description of one model: architecture, cost at an image size, published weights.

    For models in Table 6 of the paper it also contains the cost of pre-training, as computed here
    and as printed in the paper.

    Args:
        model: Name of a model.
        image_size: (height, width) in pixels; default: that of the row, 224 x 224 for the paper's.
        classes: As in `models_table`.

    Raises:
        ValueError: If the name is unknown, or the patches do not tile the image.

    Example:
        >>> [line for line in model_card("ViT_H14").splitlines() if "parameters" in line]
        ['  parameters   632,045,800 with 1,000 classes']
    """
    tags = catalog.list_weights(model)  # its error for an unknown model suggests close names
    row = VARIANTS[model]
    size = image_size or cost.native_size(row)
    facts = (
        _describe_transformer(row, size)
        if isinstance(row, ViTVariant)
        else _describe_resnet(row, size)
    )
    facts += [*_describe_cost(row, size, classes), *_describe_pretraining(row)]
    width = max(len(label) for label, _ in facts)
    lines = [model, *(f"  {label:<{width}}   {text}" for label, text in facts), ""]
    if not tags:
        return "\n".join([*lines, "No published weights: use weights=None, a file or a URL."])
    also = (
        " (the name of any AugReg file of this model is also a tag)"
        if any(tag.startswith("augreg") for tag in tags)
        else ""
    )
    return "\n".join([*lines, f"Published weights{also}:", *_format_weights(model, tags)])


def _format_row(
    row: ViTVariant | ResNetVariant, size: tuple[int, int], classes: Classes
) -> list[str]:
    outputs = resolve_classes(row, classes)
    try:
        parameters = cost.parameters(row, image_size=size, classes=outputs)
        gmacs = cost.macs(row, size, classes=outputs) / 1e9
    except ValueError:
        return ["-"] * 4
    tokens = str(cost.tokens(row, size)) if isinstance(row, ViTVariant) else "-"
    return [
        f"{parameters:,}",
        f"{gmacs:.1f}",
        f"{cost.weight_bytes(parameters) / _MIB:.0f}",
        tokens,
    ]


def _describe_transformer(row: ViTVariant, size: tuple[int, int]) -> list[tuple[str, str]]:
    stride = row.stem.total_stride if row.stem else 1
    rows, columns = grid.patch_grid(size, row.patch_size, num_halvings=int(math.log2(stride)))
    facts = [("source", row.source)]
    if row.stem:
        units = f"residual units {row.stem.units}" if row.stem.units else "no residual units"
        facts.append(("stem", f"ResNet root, {units}, one cell per {stride} x {stride} pixels"))
    on = "cells of the stem" if row.stem else "pixels"
    blocks = (
        f"{row.depth} blocks, each along the rows, then along the columns"
        if row.axial
        else f"{row.depth} blocks"
    )
    activation = "SwiGLU" if row.mlp == "swiglu" else f"{row.gelu} GELU"
    return [
        *facts,
        ("patch", f"{row.patch_size} x {row.patch_size} {on}"),
        ("encoder", f"{blocks}, width {row.width}, {row.num_heads} heads, MLP {row.mlp_dim}"),
        *_describe_options(row),
        ("numerics", f"layer norm epsilon {row.norm_epsilon:g}, {activation}"),
        ("image", f"{size[0]} x {size[1]} pixels"),
        ("grid", f"{rows} x {columns} patches"),
        ("tokens", f"{cost.tokens(row, size)}: {rows * columns} patches and {_name_prefix(row)}"),
        *_describe_family(row),
    ]


def _name_prefix(row: ViTVariant) -> str:
    if not has_class_token(row, None):
        return "no class token"
    more = ["the distillation token"] if row.distilled else []
    more += [f"{row.num_registers} registers"] if row.num_registers else []
    return ", ".join(["the class token", *more])


def _describe_options(row: ViTVariant) -> Iterator[tuple[str, str]]:
    """Yields a line on what the blocks have beyond those of the paper."""
    without = {"all": "", "no_key": "no bias of the keys", "none": "no biases of queries and keys"}
    parts = [
        "layer scale" if row.layer_scale else "",
        "rotary positions" if row.rotary else "",
        "a norm before the blocks" if row.norm_before_blocks else "",
        "the norm after the pooling" if row.norm_after_pooling else "",
        without[row.attention_bias],
        "" if row.patch_bias else "no bias of the patches",
        "" if row.class_position else "no position of the class token",
    ]
    if any(parts):
        yield "options", ", ".join(filter(None, parts))


def _describe_family(row: ViTVariant) -> Iterator[tuple[str, str]]:
    """Yields pixels, evaluation and licence, for models of other families."""
    if row.name not in FAMILY_VARIANTS:
        return
    mean, std = (", ".join(f"{x:.4g}" for x in xs) for xs in (row.pixel_mean, row.pixel_std))
    yield "pixels", f"in [-1, 1], normalized inside: mean {mean}; deviation {std}, of 0 to 1"
    if not row.rotary:
        yield "positions", f"resized by the rule {row.interpolation!r}"
    yield "evaluation", f"{row.crop_in_words}, as published"
    yield "licence", f"{row.licence}, of the published weights"


def _describe_resnet(row: ResNetVariant, size: tuple[int, int]) -> list[tuple[str, str]]:
    cells = [math.ceil(side / row.total_stride) for side in size]
    kind = "pre-activation (v2)" if row.preactivation else "post-activation (v1.5)"
    axial = (
        "attention",
        "8 heads along the rows, then along the columns, in place of each 3 x 3 convolution",
    )
    return [
        ("source", row.source),
        ("units", f"{row.units}, {kind}, {row.width_factor} times the width"),
        *([axial] if row.axial else []),
        ("image", f"{size[0]} x {size[1]} pixels"),
        ("last map", f"{cells[0]} x {cells[1]} cells, {row.out_channels} channels"),
    ]


def _describe_cost(
    row: ViTVariant | ResNetVariant, size: tuple[int, int], classes: Classes
) -> list[tuple[str, str]]:
    outputs = resolve_classes(row, classes)
    parameters = cost.parameters(row, image_size=size, classes=outputs)
    macs = cost.macs(row, size, classes=outputs)
    word = _name_outputs(row) if classes == "default" else "classes"
    weights = (
        f"{cost.weight_bytes(parameters, dtype) / _MIB:,.1f} MiB in {dtype}" for dtype in _DTYPES
    )
    forward, backward = (
        cost.activation_bytes(row, size, training=training) / _MIB for training in (False, True)
    )
    return [
        ("parameters", f"{parameters:,} {_format_head(outputs, word)}"),
        ("MACs", f"{macs / 1e9:,.2f} G per image, forward"),
        ("FLOPs", f"{cost.flops(macs) / 1e9:,.2f} G per image, forward"),
        ("weights", ", ".join(weights)),
        (
            "activations",
            f"{forward:,.1f} MiB in float32: peak of the forward pass of one image, without fusion",
        ),
        (
            "training",
            f"{backward:,.1f} MiB in float32: activations stored for the gradient, per image",
        ),
    ]


def _describe_pretraining(row: ViTVariant | ResNetVariant) -> Iterator[tuple[str, str]]:
    """Yields a line for each run in Table 6."""
    for run in paper.published(model=row.name, table="Table 6", dataset="imagenet"):
        exaflops = cost.pretraining_exaflops(row, epochs=run.epochs or 0)
        printed = run.note if "exaFLOPs" in run.note else f"{run.exaflops:,}"
        yield (
            "pre-training",
            f"{exaflops:,.1f} exaFLOPs for {run.epochs} epochs of JFT-300M; Table 6: {printed}",
        )


_DTYPES = ("float32", "bfloat16", "int8")


def _format_head(outputs: int | None, word: str) -> str:
    return "without a head" if outputs is None else f"with {outputs:,} {word}"


def _name_outputs(row: ViTVariant | ResNetVariant) -> str:
    """Returns "outputs" for a projection, the image embedding of CLIP."""
    return "outputs" if isinstance(row, ViTVariant) and row.projection else "classes"


def _format_weights(model: str, tags: list[str]) -> list[str]:
    rows = [catalog.lookup(model, tag) for tag in tags]
    # Aliases of a file come before its own tag, so the last tag of each URL stays.
    names = {row.url: row.tag for row in rows}
    table = [["  tag", "pixels", _name_outputs(VARIANTS[model]), "top-1 %", "MiB", ""]]
    for row in rows:
        accuracy = "-" if row.accuracy is None else f"{row.accuracy:.2f}"
        size = "-" if row.bytes is None else f"{row.bytes / _MIB:.0f}"
        notes = [] if row.head_is_valid else ["head all zeros"]
        notes += ["tanh layer"] if row.has_pre_logits else []
        notes += [row.licence] if row.licence != "Apache-2.0" else []
        notes += ["gated"] if row.is_gated else []
        notes += [row.accuracy_source] if row.accuracy_source else []
        if names[row.url] != row.tag:
            notes = [f"alias of {names[row.url]}"]
        table.append(
            [
                f"  {row.tag}",
                str(row.image_size),
                "-" if row.classes is None else f"{row.classes:,}",
                accuracy,
                size,
                "; ".join(notes),
            ]
        )
    return _align(table, num_notes=1)


def _align(table: list[list[str]], num_notes: int = 0) -> list[str]:
    """Returns the lines of a table: the first column and the last `num_notes` columns aligned left,
    the others right.
    """
    widths = [max(len(cell) for cell in column) for column in zip(*table, strict=True)]
    lines = []
    for cells in table:
        padded = [
            cell.ljust(width)
            if index == 0 or index >= len(cells) - num_notes
            else cell.rjust(width)
            for index, (cell, width) in enumerate(zip(cells, widths, strict=True))
        ]
        lines.append("   ".join(padded).rstrip())
    return lines
