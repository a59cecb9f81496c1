"""Sections of the report on the model: size and cost, filters, positions, training, Figure 5.

Source: arXiv:2010.11929, section 4.5; Figures 5, 7 (left and centre) and 10.
"""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import keras
import numpy as np

from keras_vit import cost, paper
from keras_vit.analyze.attention_sites import blocks_of
from keras_vit.analyze.embeddings import filter_components, position_similarity
from keras_vit.analyze.page import Picture, Section, Table
from keras_vit.analyze.plots import draw_filters, draw_similarity
from keras_vit.analyze.subject import Absent, Subject
from keras_vit.analyze.trend_plots import (
    Point,
    draw_accuracy_against_compute,
    draw_training_curve,
    published_compute,
)
from keras_vit.evaluate.heads import head_of
from keras_vit.graph import calls_of
from keras_vit.layers import (
    AddPositionEmbs,
    AttentionPooling,
    ClassToken,
    PatchEmbedding,
    Registers,
    RotaryPositions,
    TokenPooling,
    TransformerBlock,
)
from keras_vit.options import POOLING_OF
from keras_vit.pixels import pixels_of
from keras_vit.variants import RESNET_VARIANTS, VARIANTS, VIT_VARIANTS, ResNetVariant, ViTVariant
from keras_vit.writing import write_csv

_JFT_EPOCHS = 7  # as in most runs of Table 6


def facts(subject: Subject) -> Table:
    """Returns the size of a model, and its cost per image if `keras_vit.cost` supports it."""
    size = subject.shown[0].seen.shape[:2]
    rows = [
        *subject.facts.items(),
        ("image", f"{size[0]} x {size[1]} pixels {pixels_of(subject.model)}"),
    ]
    rows.append(("parameters", f"{subject.model.count_params():,}"))
    if found := _compute_cost(subject, size):
        macs, peak = found
        rows.append(("MACs", f"{_format_giga(macs)} per image, forward"))
        rows.append(("FLOPs", f"{_format_giga(cost.flops(macs))} per image, forward"))
        rows.append(
            ("activations", f"{peak / 2**20:,.1f} MiB in float32: estimated peak for one image")
        )
    if subject.variant:
        rows.append(("architecture", VARIANTS[subject.variant].source))
    if subject.attention is not None:
        (num_rows, columns), (height, width) = subject.attention.grid, subject.attention.patch_px
        rows.append(("grid", f"{num_rows} x {columns} patches of {height:g} x {width:g} pixels"))
        rows.append(
            ("attention", "{} layers of {} heads".format(*subject.attention.distance_px.shape))
        )
    return Table(["", ""], rows)


def _compute_cost(subject: Subject, size: tuple[int, int]) -> tuple[int, int] | None:
    """Returns the MACs and the peak of activations in bytes, for one image; None if unsupported."""
    row = _find_row(subject)
    if row is None:
        return None
    options, patched = _find_options(subject), _find_patched_size(subject, size)
    macs = cost.macs(row, patched, **options)
    options = {name: options[name] for name in _OF_ACTIVATIONS if name in options}
    return macs, cost.activation_bytes(row, patched, **options)


def _find_row(subject: Subject) -> ViTVariant | ResNetVariant | None:
    """Returns the row of the table, or one derived from the layers of a ViT without a stem."""
    if subject.variant:
        return VARIANTS[subject.variant]
    model, blocks = subject.model, blocks_of(subject.model)
    embeddings = _find_layers(model, PatchEmbedding)
    is_plain = blocks and all(isinstance(block, TransformerBlock) for block in blocks)
    if len(embeddings) != 1 or not is_plain or embeddings[0].kernel.shape[-2] != 3:
        return None
    names = {layer.name for layer in model.layers}
    learned = {layer.name for layer in _find_layers(model, ClassToken)}
    tables = _find_layers(model, AddPositionEmbs)
    return replace(
        VIT_VARIANTS["ViT_Ti16"],
        name=model.name,
        patch_size=embeddings[0].patch_size,
        patch_bias=embeddings[0].use_bias,
        width=embeddings[0].width,
        depth=len(blocks),
        num_heads=blocks[0].num_heads,
        mlp_dim=blocks[0].mlp_dim,
        mlp=blocks[0].mlp_kind,
        gelu=blocks[0].gelu,
        layer_scale=blocks[0].layer_scale,
        attention_bias=blocks[0].attention_bias,
        class_token="class_token" in learned,
        class_position=not tables or tables[0].num_prefix_tokens == len(learned),
        distilled="distillation_token" in learned,
        distilled_head="distillation" in _list_pooling_modes(model),
        num_registers=sum(layer.count for layer in _find_layers(model, Registers)),
        norm_before_blocks="norm_before_blocks" in names,
        norm_after_pooling="pooled_norm" in names,
        rotary=bool(_find_layers(model, RotaryPositions)),
    )


def _find_options(subject: Subject) -> dict[str, Any]:
    """Returns the options of a model that `keras_vit.cost` needs besides its variant."""
    model, head = subject.model, head_of(subject.model)
    options: dict[str, Any] = {"classes": None if head is None else head.units}
    if subject.variant in RESNET_VARIANTS:
        return options
    hidden = [dense for dense in _find_layers(model, keras.layers.Dense) if dense is not head]
    sizes = [dense.units for dense in hidden if dense.name == "pre_logits"]
    options["representation_size"] = sizes[0] if sizes else None
    if any(getattr(block, "relative_positions", None) for block in blocks_of(model)):
        options["position_embedding"] = "relative"
    if _find_layers(model, AttentionPooling):
        return options | {"classifier": "map"}
    classifiers = {pooling: classifier for classifier, pooling in POOLING_OF.items()}
    found = [classifiers[mode] for mode in _list_pooling_modes(model) if mode in classifiers]
    default = "token" if _find_layers(model, ClassToken) else "gap"
    return options | {"classifier": found[0] if found else default}


_OF_ACTIVATIONS = ("classifier", "position_embedding")  # options that change the peak of memory


def _find_patched_size(subject: Subject, size: tuple[int, int]) -> tuple[int, int]:
    """Returns the (height, width) that is cut into patches: a model of a file may resize or pad its
    images, of (height, width) `size`.
    """
    if subject.variant:
        return size
    images = subject.model.inputs[0]
    [cut] = [
        call.input_tensors[0]
        for call in calls_of(subject.model)
        if isinstance(call.operation, PatchEmbedding)
    ]
    [shape] = keras.Model(images, [cut]).compute_output_shape((1, *size, images.shape[-1]))
    return shape[1], shape[2]


def _find_layers(model: keras.Model, kind: type) -> list[Any]:
    """Returns the layers of a kind in the graph of a model, in order, without nested models."""
    return [call.operation for call in calls_of(model) if isinstance(call.operation, kind)]


def _list_pooling_modes(model: keras.Model) -> list[str]:
    return [layer.mode for layer in _find_layers(model, TokenPooling)]


def write_filters(subject: Subject, folder: Path) -> Section | Absent:
    """Draws Figure 7, left; for a hybrid or a ResNet, with the filters of the root convolution."""
    title = "Principal components of the filters"
    try:
        found = filter_components(subject.model)
    except ValueError as error:
        return Absent(title, str(error))
    draw_filters(folder / "filters.png", found.components, found.explained)
    rows = ([number, f"{share:.6g}"] for number, share in enumerate(found.explained, start=1))
    write_csv(folder / "filter_components.csv", ["component", "explained"], rows)
    count, height, width = found.components.shape[:3]
    caption = (
        f"The first {count} principal components of the filters that read the image, {height} x "
        f"{width} pixels each, with their explained variance; together "
        f"{_format_percent(found.explained.sum())}. Components of trained filters resemble waves "
        "and edges, those of untrained ones noise."
    )
    first = _format_percent(found.explained[0])
    alt = (
        f"{count} tiles, the principal components of the filters; the first explains {first} of "
        f"the variance."
    )
    return Section(title, [Picture(path=folder / "filters.png", alt=alt, caption=caption)])


def write_positions(subject: Subject, folder: Path) -> Section | Absent:
    """Draws Figure 7, centre; or one panel per block, as in Figure 10, if each adds positions."""
    title = "Similarity of position embeddings"
    names = list(_find_position_layers(subject.model))
    try:
        found = {name: position_similarity(subject.model, layer=name) for name in names or [None]}
    except ValueError as error:
        return Absent(title, str(error))
    draw_similarity(folder / "positions.png", found)
    header = ["layer", "row", "column", "other_row", "other_column", "similarity"]
    rows = (
        [name, *at, f"{value:.4f}"]
        for name, cosines in found.items()
        for at, value in np.ndenumerate(cosines)
    )
    write_csv(folder / "position_similarity.csv", header, rows)
    caption = (
        "One tile for each patch: the cosine similarity of its position embedding with those of "
        "all patches. In trained models, patches that are close, or in the same row or column, "
        "have similar embeddings."
    )
    said = "; ".join(f"{name}: {_describe_similarity(cosines)}" for name, cosines in found.items())
    return Section(
        title,
        [
            Picture(
                path=folder / "positions.png",
                alt=f"Cosine similarities. {said}.",
                caption=caption,
            )
        ],
    )


def write_training(subject: Subject, folder: Path) -> Section | Absent:
    """Draws loss and accuracy against steps."""
    title = "Training"
    curves = {
        name: curve
        for name, curve in subject.curves.items()
        if name.endswith(("loss", "accuracy")) and curve
    }
    if not curves:
        return Absent(title, "The folder of the weights contains no metrics.csv of this package.")
    draw_training_curve(folder / "training_curve.png", {subject.title: curves})
    said = ", ".join(
        f"{name} {curve[-1][1]:.4g} at step {curve[-1][0]:,}" for name, curve in curves.items()
    )
    caption = "Loss and accuracy against steps, from metrics.csv in the folder of the weights."
    alt = f"Learning curves; last values: {said}."
    return Section(title, [Picture(path=folder / "training_curve.png", alt=alt, caption=caption)])


def write_compute(subject: Subject, folder: Path) -> Section | Absent:
    """Draws Figure 5, with the runs of this model highlighted."""
    title = "Accuracy against compute"
    if not subject.variant:
        return Absent(title, "The model is not in the table of models.")
    exaflops = cost.pretraining_exaflops(VARIANTS[subject.variant], epochs=_JFT_EPOCHS)
    counted = f"By this package's count, {_JFT_EPOCHS} epochs of JFT-300M take {_format_exaflops(exaflops)} exaFLOPs."
    runs = paper.published(table="Table 6", dataset="imagenet", model=subject.variant)
    if not runs:
        return Absent(title, f"Figure 5 of the paper has no {subject.variant}. {counted}")
    panels = {name: _mark_variant(subject.variant, dataset) for name, dataset in _PANELS.items()}
    draw_accuracy_against_compute(folder / "compute.png", panels)
    said = "; ".join(
        f"{run.accuracy} % on ImageNet for {run.exaflops:,} exaFLOPs, {run.epochs} epochs"
        for run in runs
    )
    caption = (
        f"Figure 5 of the paper, from its Table 6, with {subject.variant} highlighted: accuracy "
        f"after fine-tuning against pre-training compute on JFT-300M. The points are the runs of "
        f"the paper, not these weights. {counted}"
    )
    alt = f"Accuracy against compute of ViTs, hybrids and ResNets. {subject.variant}: {said}."
    return Section(title, [Picture(path=folder / "compute.png", alt=alt, caption=caption)])


_PANELS = {"mean of five data sets": "average5", "ImageNet": "imagenet"}


def _mark_variant(variant: str, dataset: str) -> dict[str, list[Point]]:
    """Returns the points of Table 6, and those of one model as a separate family."""
    runs = paper.published(table="Table 6", dataset=dataset, model=variant)
    own = [Point(x=run.exaflops, accuracy=run.accuracy) for run in runs if run.exaflops]
    return published_compute(dataset) | {variant: own}


def _find_position_layers(model: keras.Model) -> Iterator[str]:
    """Yields names of layers, including those of nested models."""
    for layer in model.layers:
        if isinstance(layer, AddPositionEmbs):
            yield layer.name
        elif isinstance(layer, keras.Model):
            yield from _find_position_layers(layer)


def _format_exaflops(exaflops: float) -> str:
    return f"{exaflops:,.0f}" if exaflops >= 100 else f"{exaflops:.1f}"


def _format_giga(number: int) -> str:
    return f"{number / 1e9:,.2f} G" if number >= 1e9 else f"{number / 1e9:.3g} G"


def _format_percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def _describe_similarity(cosines: np.ndarray) -> str:
    """Describes the similarity of adjacent positions, and of opposite corners."""
    rows, columns = cosines.shape[:2]
    near = [
        cosines[row, column, row, column + 1]
        for row in range(rows)
        for column in range(columns - 1)
    ]
    near += [
        cosines[row, column, row + 1, column]
        for row in range(rows - 1)
        for column in range(columns)
    ]
    if not near:
        return "a single position"
    return f"adjacent patches {np.mean(near):.2f} on average, opposite corners {cosines[0, 0, -1, -1]:.2f}"
