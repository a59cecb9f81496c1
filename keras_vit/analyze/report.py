"""What a model looks at and what its parts have learned, on one page: `report.html`, its pictures,
its numbers as CSV.

What does not apply to a model is left out, and the page says why. How the model is built and
photographs are read is the business of the caller.
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
    "overlays.png": "where the attention goes, over photos",
    "rollout.csv": "the same as numbers: the share of each patch in what the classifier reads",
    "heads.png": "where each head of each layer looks, on the first of these photos",
    "attention_distance.png": "how far each head looks",
    "attention_distance.csv": "the same as numbers, in pixels",
    "filters.png": "principal components of the filters",
    "filter_components.csv": "the share of each in the variance of the filters",
    "positions.png": "how alike the positions are",
    "position_similarity.csv": "the same as numbers, cosines from -1 to 1",
    "training_curve.png": "loss and accuracy against steps",
    "compute.png": "Figure 5 of the paper with this model",
    "photos.csv": "every photo: what the model says of it, or why it could not be read",
}
"""What may lie beside `report.html`."""


def write_report(subject: Subject, folder: str | os.PathLike) -> Path:
    """Computes, draws and writes all that applies to a model, in place of an earlier report in the
    folder.

    Other files there are left alone. The page is written last, so that it is of the files beside
    it.

    Args:
        subject: Model and photos.
        folder: For the files; made if it is absent.

    Returns:
        The path of `report.html`: one file with all pictures, that opens without a network.

    Raises:
        ImportError: If matplotlib is absent; the message says what to install.
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
        Section("The model", [facts(subject)]),
        *(part for part in parts if isinstance(part, Section)),
    ]
    absent = [part for part in parts if isinstance(part, Absent)]
    sections += [Section("What is not here", [Table(["", "why"], absent)])] if absent else []
    unreadable = [(photo.name, photo.problem) for photo in subject.photos if photo.problem]
    sections += (
        [Section("Photos that could not be read", [Table(["photo", "why"], unreadable)])]
        if unreadable
        else []
    )
    sections += (
        [Section("Left out", [Table(["file", "why"], subject.left_out)])]
        if subject.left_out
        else []
    )
    files = [(name, text) for name, text in FILES.items() if (folder / name).exists()]
    sections += [Section("Files beside this page", [Table(["file", "what it is"], files)])]
    write_text(folder / "report.html", page(subject.title, _lead(subject), sections))
    return folder / "report.html"


def _lead(subject: Subject) -> str:
    unreadable = sum(bool(photo.problem) for photo in subject.photos)
    words = f"What the model looks at, on {counted(len(subject.photos) - unreadable, 'photo')}"
    words += (
        f", {len(subject.shown)} of them drawn"
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
