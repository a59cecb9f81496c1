"""Sections of the report on attention: rollout on photos, maps of all heads, mean distance.

Source: arXiv:2010.11929, appendix D.7 and D.8; Figures 6, 7 (right), 11 and 14.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from keras_vit.analyze.attention import attention_rollout, head_maps
from keras_vit.analyze.attention_sites import PATCHES, Sites, find_attention
from keras_vit.analyze.page import Picture, Section, Table
from keras_vit.analyze.plots import draw_distance, draw_head_maps, draw_overlays
from keras_vit.analyze.subject import Shown, Subject, counted
from keras_vit.pixels import pixels_of
from keras_vit.writing import write_csv


def write_attention(subject: Subject, folder: Path) -> list[Section]:
    """Draws and writes these sections; returns none for a model without attention."""
    if subject.attention is None:
        return []
    return [part(subject, folder) for part in (_write_overlays, _write_heads, _write_distance)]


def _write_overlays(subject: Subject, folder: Path) -> Section:
    seen = pixels_of(subject.model).from_levels(np.stack([shown.seen for shown in subject.shown]))
    maps = attention_rollout(subject.model, seen)
    headings = [shown.photo.heading(number) for number, shown in enumerate(subject.shown, start=1)]
    draw_overlays(
        folder / "overlays.png", [shown.picture for shown in subject.shown], list(maps), headings
    )
    rows = (
        [subject.shown[at[0]].photo.name, *at[1:], f"{share:.6g}"]
        for at, share in np.ndenumerate(maps)
    )
    write_csv(folder / "rollout.csv", ["photo", "row", "column", "share"], rows)
    said = [
        f"{heading}: highest {_locate_maximum(seen)}"
        for heading, seen in zip(headings, maps, strict=True)
    ]
    caption = (
        "Each photo, and the same photo with brightness by attention. The method is attention "
        "rollout: the heads of a layer are averaged and added to the identity of the residual "
        "connection, and the layers are multiplied. The result is the share of each patch in the "
        f"input of the classifier. {_describe_reading(find_attention(subject.model))} Each map is "
        "scaled from its minimum to its maximum."
    )
    picture = Picture(
        path=folder / "overlays.png",
        alt=f"Attention rollout over photos. {'; '.join(said)}.",
        caption=caption,
    )
    note = (
        "Attention does not explain a prediction: a patch with high attention may have little "
        "effect on it."
    )
    return Section("Attention rollout", [picture, _list_shown(subject.shown), note])


def _list_shown(photos: Sequence[Shown]) -> Table:
    rows = [(f"{number}.", shown.photo.name) for number, shown in enumerate(photos, start=1)]
    if not any(shown.photo.answer for shown in photos):
        return Table(["", "photo"], rows)
    answers = [(shown.photo.answer, shown.photo.share()) for shown in photos]
    return Table(
        ["", "photo", "answer", "probability"],
        [(*a, *b) for a, b in zip(rows, answers, strict=True)],
    )


def _write_heads(subject: Subject, folder: Path) -> Section:
    seen = pixels_of(subject.model).from_levels(subject.shown[0].seen[None])
    maps = head_maps(subject.model, seen)[0]
    heading = subject.shown[0].photo.heading(1)
    draw_head_maps(folder / "heads.png", subject.shown[0].picture, maps, heading)
    caption = (
        "The attention to each patch, from what the classifier reads: one row for each of "
        f"{counted(len(maps), 'layer')}, one tile for each of {counted(maps.shape[1], 'head')}. "
        f"{_describe_reading(find_attention(subject.model))} Each tile is scaled to its own "
        "maximum, so tiles show the distribution of attention and not its amount."
    )
    alt = f"Attention maps, {len(maps)} rows of {maps.shape[1]}, next to the photo {heading}."
    return Section(
        "Attention maps of all heads",
        [Picture(path=folder / "heads.png", alt=alt, caption=caption)],
    )


def _describe_reading(sites: Sites) -> str:
    """Describes in a sentence what the classifier reads."""
    if sites.attention_pooling is not None:
        patches = "the patches, weighted by the attention of the pooling"
    elif any(getattr(layer, "mode", "") == "max" for layer, _ in sites.poolings):
        patches = "the maximum of the patches, of which each is given the same share"
    else:
        patches = "the mean of the patches"
    parts = [patches if part == PATCHES else f"the {part}" for part in sites.reads]
    read = " and ".join(parts) + (", in equal shares" if len(parts) > 1 else "")
    if sites.returns_tokens and not sites.poolings:
        return f"The model has no classifier and returns all tokens; {read} is taken."
    if sites.is_reading_assumed:
        return f"The pooling of the model is unknown: its classifier is assumed to read {read}."
    return f"The classifier reads {read}."


def _write_distance(subject: Subject, folder: Path) -> Section:
    found, far = subject.attention, subject.attention.distance_px
    draw_distance(folder / "attention_distance.png", far)
    rows = ([found.layers[layer], head, f"{px:.4f}"] for (layer, head), px in np.ndenumerate(far))
    write_csv(folder / "attention_distance.csv", ["layer", "head", "distance_px"], rows)
    caption = (
        "Mean attention distance of each head: the distance between patches, weighted by "
        f"attention, averaged over all patches of {counted(found.num_images, 'photo')}, in pixels "
        "of the resized image. As in Figure 7 of the paper, attention to a class token counts as "
        "distance 0."
    )
    alt = (
        f"Mean attention distance against depth, one dot per head: first layer "
        f"{_format_range(far[0])}, last layer {_format_range(far[-1])}."
    )
    picture = Picture(path=folder / "attention_distance.png", alt=alt, caption=caption)
    numbers = [
        (name, *(f"{px:.1f}" for px in (heads.mean(), heads.min(), heads.max())))
        for name, heads in zip(found.layers, far, strict=True)
    ]
    header = ["layer", "mean of its heads, px", "smallest, px", "largest, px"]
    return Section("Mean attention distance", [picture, Table(header, numbers)])


def _format_range(px: np.ndarray) -> str:
    return f"{px.min():.0f} to {px.max():.0f} pixels"


def _locate_maximum(seen: np.ndarray) -> str:
    """Describes the position of the maximum of a map."""
    place = np.unravel_index(seen.argmax(), seen.shape)
    thirds = [(3 * int(at) + 1) // size for at, size in zip(place, seen.shape, strict=True)]
    words = [
        ("at the top", "", "at the bottom")[min(thirds[0], 2)],
        ("left", "", "right")[min(thirds[1], 2)],
    ]
    return " ".join(filter(None, words)) or "in the middle"
