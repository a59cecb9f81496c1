"""Model cards in Markdown: the work of `info MODEL --markdown`.

A card states only facts that the tables of this package contain: `variants.py`,
`weights/catalog.py`, `paper.py`, and the closed forms of `cost/`. What the tables do not contain is
named as unknown. `info.py` formats the same facts for a terminal.
"""

import re
from collections.abc import Iterator

from keras_vit import cost, paper
from keras_vit.cost.rows import Classes, resolve_classes
from keras_vit.variants import FAMILY_VARIANTS, VARIANTS, ResNetVariant, ViTVariant
from keras_vit.weights import catalog
from keras_vit.weights.catalog import CatalogRow
from keras_vit.writing import table

_MIB = 2**20
_NON_COMMERCIAL = "-NC-"
_ARXIV = re.compile(r"arXiv:(\d{4}\.\d{4,5})")
_AUGREG_PAPER = "arXiv:2106.10270"
_UNKNOWN = "not stated in the tables of this package"

# The first pattern that occurs in a tag names its training data. Source: the list of tags in
# `weights/catalog.py`, and that of `weights/hub_table.py`. The tags of distilled files, of their
# teachers and of OpenAI do not name the data, so they have no row.
_TRAINING_DATA = (
    (r"^augreg_in21k_ft_in1k", "ImageNet-21k, then fine-tuned on ImageNet"),
    (r"^imagenet21k\+imagenet2012", "ImageNet-21k, then fine-tuned on ImageNet"),
    (r"^bit_m_imagenet$", "ImageNet-21k, then fine-tuned on ImageNet"),
    (r"^(augreg_in21k|imagenet21k|bit_m)$", "ImageNet-21k"),
    (r"^(sam|bit_s|in1k)$", "ImageNet"),
    (r"^in22k_ft_in1k$", "ImageNet-22k, then fine-tuned on ImageNet"),
    (r"^in22k$", "ImageNet-22k"),
    (r"^lvd142m_in1k$", "LVD-142M; the linear head on ImageNet"),
    (r"^lvd142m$", "LVD-142M"),
    (r"^lvd1689m$", "LVD-1689M"),
    (r"^laion2b$", "LAION-2B"),
    (r"webli", "WebLI"),
)


def format_model_card(
    model: str, image_size: tuple[int, int] | None = None, classes: Classes = "default"
) -> str:
    """Returns the card of a model as Markdown: origin, licence, training data, pixels, published
    numbers with their sources, cost, known limits, citation.

    Args:
        model: Name of a model.
        image_size: (height, width) in pixels, for the cost; default: that of the row, 224 x 224
            for the paper's.
        classes: Outputs of the head, for the cost, or None for no head. Default: 1000, and for CLIP
            those of its projection.

    Raises:
        ValueError: If the name is unknown, or the patches do not tile the image.

    Example:
        >>> format_model_card("ViT_B16").splitlines()[0]
        '# ViT_B16'
    """
    files = _list_files(model)  # its error for an unknown model suggests close names
    row = VARIANTS[model]
    sections = {
        "Origin": _describe_origin(row, files),
        "Licence": _describe_licence(files),
        "Training data": _describe_data(files),
        "Pixels": _describe_pixels(row),
        "Published numbers": _describe_numbers(model, files),
        "Cost": _describe_cost(row, image_size or cost.native_size(row), classes),
        "Known limits": "\n".join(f"- {limit}" for limit in _list_limits(row, files)),
        "Citation": _describe_citation(row, files),
    }
    parts = [f"# {model}", f"Made by `python -m keras_vit info {model} --markdown`."]
    return "\n\n".join([*parts, *(f"## {title}\n\n{text}" for title, text in sections.items())])


def _list_files(model: str) -> list[CatalogRow]:
    """Returns one row for each published file. An alias comes before the tag of the file itself."""
    rows = [catalog.lookup(model, tag) for tag in catalog.list_weights(model)]
    return list({row.url: row for row in rows}.values())


def _describe_origin(row: ViTVariant | ResNetVariant, files: list[CatalogRow]) -> str:
    text = f"Architecture: {row.source}."
    if not files:
        return f"{text}\n\nThe table of weights has no file of this model."
    listing = table(
        ["`weights=`", "file", "training images", "outputs", "MiB"],
        (
            [
                f"`{file.tag}`",
                file.url,
                f"{file.image_size} x {file.image_size}",
                _describe_outputs(file),
                "-" if file.bytes is None else f"{file.bytes / _MIB:.0f}",
            ]
            for file in files
        ),
    )
    more = (
        "\n\nThe name of any other AugReg file of this model is also a tag."
        if any(file.tag.startswith("augreg") for file in files)
        else ""
    )
    return f"{text}\n\n{listing}{more}"


def _describe_outputs(file: CatalogRow) -> str:
    if file.classes is None:
        return "no head"
    named = f" ({file.dataset})" if file.dataset else ""
    return f"{file.classes:,}{named}"


def _describe_licence(files: list[CatalogRow]) -> str:
    if not files:
        return "There are no published weights, and so no licence of weights."
    licences = dict.fromkeys(file.licence for file in files)
    lines = [f"The published weights: {', '.join(licences)}."]
    if any(_NON_COMMERCIAL in licence for licence in licences):
        lines.append("This licence excludes commercial use.")
    if any(file.is_gated for file in files):
        lines.append("The owner grants access to the files on request.")
    return " ".join(lines)


def _describe_data(files: list[CatalogRow]) -> str:
    if not files:
        return "There are no published weights."
    data = {file.tag: _find_data(file.tag) for file in files}
    return table(["`weights=`", "training data"], ([f"`{tag}`", data[tag]] for tag in data))


def _find_data(tag: str) -> str:
    return next((data for pattern, data in _TRAINING_DATA if re.search(pattern, tag)), _UNKNOWN)


def _describe_pixels(row: ViTVariant | ResNetVariant) -> str:
    text = "Input: (B, H, W, 3), RGB, pixels scaled to [-1, 1]; `preprocess_input` scales them."
    if not isinstance(row, ViTVariant) or row.name not in FAMILY_VARIANTS:
        return text
    mean, std = (", ".join(f"{x:.4g}" for x in xs) for xs in (row.pixel_mean, row.pixel_std))
    return (
        f"{text} The model itself normalizes them by mean {mean} and deviation {std}, of pixels "
        f"from 0 to 1. Published evaluation: {row.crop_in_words}."
    )


def _describe_numbers(model: str, files: list[CatalogRow]) -> str:
    parts = []
    rows = [
        [f"`{file.tag}`", f"{file.image_size}", f"{file.accuracy:.2f}", file.accuracy_source]
        for file in files
        if file.accuracy is not None
    ]
    if rows:
        header = ["`weights=`", "pixels", "ImageNet top-1 %", "source"]
        parts.append(f"Of the published files:\n\n{table(header, rows)}")
    # Single tasks of VTAB and means that the paper does not print are left out.
    printed = [
        number
        for number in paper.published(model=model)
        if "/" not in number.dataset and "not printed" not in number.note
    ]
    if printed:
        header = [
            "pre-trained on",
            "data set",
            "metric",
            "%",
            "pixels",
            "protocol",
            "source",
            "note",
        ]
        text = table(header, map(_format_number, printed))
        intro = "Of this architecture, from arXiv:2010.11929 unless the source is another:"
        parts.append(f"{intro}\n\n{text}")
    if any(number.pretrained_on == "jft300m" for number in printed):
        parts.append("The table of weights has no file that was pre-trained on JFT-300M.")
    if not parts:
        return "The tables of this package contain no published number of this model."
    parts.append("These numbers are quoted. They are not measurements of this package.")
    return "\n\n".join(parts)


def _format_number(number: paper.Published) -> list[str]:
    std = "" if number.std is None else f" ± {number.std:.2f}"
    epochs = f", {number.epochs} epochs" if number.epochs else ""
    optimizer = f", {number.optimizer}" if number.optimizer else ""
    return [
        f"{number.pretrained_on}{epochs}{optimizer}",
        number.dataset,
        number.metric,
        f"{number.accuracy:.2f}{std}",
        str(number.image_size or "-"),
        number.protocol,
        number.table,
        number.note or "-",
    ]


def _describe_cost(row: ViTVariant | ResNetVariant, size: tuple[int, int], classes: Classes) -> str:
    outputs = resolve_classes(row, classes)
    parameters = cost.parameters(row, image_size=size, classes=outputs)
    macs = cost.macs(row, size, classes=outputs)
    forward, training = (
        cost.activation_bytes(row, size, training=training) / _MIB for training in (False, True)
    )
    head = "without a head" if outputs is None else f"with {outputs:,} outputs"
    rows = [
        ["parameters", f"{parameters:,}"],
        ["weights in float32", f"{cost.weight_bytes(parameters) / _MIB:,.1f} MiB"],
        ["multiply-adds, forward, per image", f"{macs / 1e9:,.2f} G"],
        ["activations, forward, one image, float32", f"{forward:,.1f} MiB"],
        ["activations stored for the gradient, per image, float32", f"{training:,.1f} MiB"],
    ]
    if isinstance(row, ViTVariant):
        rows.append(["tokens", str(cost.tokens(row, size))])
    return f"Computed, {head}, at {size[0]} x {size[1]} pixels.\n\n{table(['cost', 'value'], rows)}"


def _list_limits(row: ViTVariant | ResNetVariant, files: list[CatalogRow]) -> Iterator[str]:
    if not files:
        yield "No weights are published: use `weights=None`, a file or a URL."
    zero = [f"`{file.tag}`" for file in files if not file.head_is_valid]
    if zero:
        yield f"The head of {', '.join(zero)} is all zeros. Its predictions are meaningless."
    headless = [f"`{file.tag}`" for file in files if file.classes is None]
    if headless:
        yield f"{', '.join(headless)}: no head. Load with `include_top=False`."
    is_on_hub = [file.url.startswith("hf://") for file in files]
    if any(is_on_hub):
        yield "A tag is the main branch of its repository, so its owner can change the weights."
    if not all(is_on_hub):
        yield (
            "Google publishes no hashes: a file is compared with the hash recorded at its first use."
        )
    if isinstance(row, ViTVariant):
        yield (
            f"The sides of an image must be multiples of {row.total_stride} pixels, unless "
            "`pad=True`."
        )
        if not row.rotary:
            yield (
                "At other image sizes than that of the file, its position embeddings are resized "
                f"by the rule `{row.interpolation}`; the numbers above do not apply."
            )
    if isinstance(row, ViTVariant) and row.torch_gelu and row.torch_gelu != row.gelu:
        yield (
            f"Google's files were trained with the {row.gelu} GELU; timm and Hugging Face compute "
            f"the {row.torch_gelu} one."
        )
    labelled = {file.dataset for file in files if file.dataset}
    if labelled:
        yield f"A head knows only the classes of its data set: {', '.join(sorted(labelled))}."
    yield "The tables of this package contain no evaluation of bias, fairness or safety."


def _describe_citation(row: ViTVariant | ResNetVariant, files: list[CatalogRow]) -> str:
    sources = [row.source, *(file.accuracy_source or "" for file in files)]
    if any(file.tag.startswith("augreg") for file in files):
        sources.append(_AUGREG_PAPER)
    found = dict.fromkeys(_ARXIV.findall(" ".join(sources)))
    links = "\n".join(f"- [arXiv:{number}](https://arxiv.org/abs/{number})" for number in found)
    return f"{links}\n\n`CITATION.cff` describes how to cite this package."
