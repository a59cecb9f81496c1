"""The report on a model: `report.html`, its figures as PNG, and tables of numbers as CSV.

Sections that do not apply to a model are omitted, and the page lists them with the reasons. The
caller builds the model and reads the photographs.
"""

import os
from collections.abc import Sequence
from pathlib import Path

from keras_vit.analyze.attention_part import write_attention
from keras_vit.analyze.model_part import (
    facts,
    write_compute,
    write_filters,
    write_positions,
    write_training,
)
from keras_vit.analyze.page import Section, Table, page
from keras_vit.analyze.subject import Absent, Photo, Subject, counted
from keras_vit.drawing import check_can_draw
from keras_vit.writing import write_csv, write_text

FILES = {
    "overlays.png": "attention rollout over photos",
    "rollout.csv": "its values: the share of each patch in the input of the classifier",
    "heads.png": "attention maps of all layers and heads, for the first of these photos",
    "attention_distance.png": "mean attention distance of each head",
    "attention_distance.csv": "its values, in pixels",
    "filters.png": "principal components of the filters",
    "filter_components.csv": "explained variance of each component",
    "positions.png": "similarity of the position embeddings",
    "position_similarity.csv": "its values, cosines from -1 to 1",
    "training_curve.png": "loss and accuracy against steps",
    "compute.png": "Figure 5 of the paper with this model",
    "photos.csv": "predictions for all photos, or the reasons why they could not be read",
}
"""Files that the folder of `report.html` may contain."""


def write_report(subject: Subject, folder: str | os.PathLike) -> Path:
    """Computes, draws and writes the report, and replaces an earlier report in the folder.

    Other files in the folder are not changed. The page is written last, so it always describes the
    files in its folder.

    Args:
        subject: Model and photos.
        folder: Folder of the report; created if missing.

    Returns:
        The path of `report.html`, which contains all pictures and needs no network.

    Raises:
        ImportError: If matplotlib is absent; the message names the package to install.
        OSError: If the folder cannot be written.
        ValueError: If the weights of the model are not finite.
    """
    check_can_draw()
    folder = Path(folder).expanduser()
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("report.html", *FILES):
        (folder / name).unlink(missing_ok=True)
    parts = [*subject.absent, *write_attention(subject, folder)]
    parts += [
        write(subject, folder)
        for write in (write_filters, write_positions, write_training, write_compute)
    ]
    _write_photos(subject.photos, folder / "photos.csv")
    sections = [
        Section("Model", [facts(subject)]),
        *(part for part in parts if isinstance(part, Section)),
    ]
    absent = [part for part in parts if isinstance(part, Absent)]
    sections += (
        [Section("Omitted sections", [Table(["section", "reason"], absent)])] if absent else []
    )
    unreadable = [(photo.name, photo.problem) for photo in subject.photos if photo.problem]
    sections += (
        [Section("Unreadable photos", [Table(["photo", "reason"], unreadable)])]
        if unreadable
        else []
    )
    sections += (
        [Section("Skipped files", [Table(["file", "reason"], subject.left_out)])]
        if subject.left_out
        else []
    )
    files = [(name, text) for name, text in FILES.items() if (folder / name).exists()]
    sections += [Section("Files of this report", [Table(["file", "content"], files)])]
    write_text(folder / "report.html", page(subject.title, _summarize(subject), sections))
    return folder / "report.html"


def _summarize(subject: Subject) -> str:
    unreadable = sum(bool(photo.problem) for photo in subject.photos)
    words = f"Analysis of {counted(len(subject.photos) - unreadable, 'photo')}"
    words += (
        f", of which {len(subject.shown)} are drawn"
        if len(subject.shown) < len(subject.photos) - unreadable
        else ""
    )
    return f"{words}; {unreadable} more could not be read." if unreadable else f"{words}."


def _write_photos(photos: Sequence[Photo], path: Path) -> None:
    rows = (
        [
            photo.name,
            photo.answer,
            f"{photo.probability:.6f}" if photo.answer else "",
            photo.problem,
        ]
        for photo in photos
    )
    write_csv(path, ["photo", "answer", "probability", "problem"], rows)
