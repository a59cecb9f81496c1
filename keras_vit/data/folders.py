"""How a folder of images is laid out: with a test set of its own, or one folder for each class and
no more.

What lives here: telling one from the other. Reading the images is the business of `sources.py`.
"""

import os
from collections.abc import Callable
from pathlib import Path

from keras_vit.data.sources import Source, image_folder
from keras_vit.photos import is_ignored, is_photo
from keras_vit.writing import group_by_reason

TRAINING = ("train", "training")
# What to measure on, the first that is there. Nothing is chosen by it, so it may be the test set.
MEASURING = ("test", "val", "validation", "valid")


def training_and_test(path: str | os.PathLike) -> tuple[Source, Source | None]:
    """Returns the training images of a folder, and its test images, or None if it has no test set.

    Either `path/train/<class>/*` and `path/test/<class>/*` (or val, validation, valid), or
    `path/<class>/*`. The names of the two folders may be written in capitals. A class may be called
    "train", if its images lie in it.

    A class folder without photos is left out, and so are, of the test set, classes that the
    training set lacks. `left_out` of the sources names them.

    Raises:
        ValueError: If there is no such folder, or nothing can be learned from it: it has fewer than
            two classes with photos, or its test set has none of them. Says all that is wrong at
            once.
    """
    root = Path(path).expanduser().resolve()
    if not root.exists():
        raise ValueError(f"There is no folder {root}. {_describe_expected(root)}")
    if not root.is_dir():
        raise ValueError(f"{root} is a file. {_describe_expected(root)}")
    folders = _list_folders(root)
    training = next(
        (folders[name] for name in TRAINING if name in folders and _has_classes(folders[name])),
        None,
    )
    test = (
        None
        if training is None
        else next((folders[name] for name in MEASURING if name in folders), None)
    )
    learned, problem = _try(lambda: _open_training(training or root))
    names = None if learned is None else learned.class_names
    measured, other = (
        (None, "") if test is None else _try(lambda: image_folder(test, class_names=names))
    )
    if problem or other:
        raise ValueError("\n".join(filter(None, (problem, other))))
    return learned, measured


def to_measure_on(path: str | os.PathLike) -> Path:
    """Returns the folder of the classes to measure on: `path/test` (or val, validation, valid) if
    that holds some.

    Raises:
        ValueError: If there is no such folder.
    """
    root = Path(path).expanduser().resolve()
    if not root.is_dir():
        raise ValueError(f"There is no folder {root}. {_describe_expected(root)}")
    inside = _list_folders(root)
    return next(
        (inside[name] for name in MEASURING if name in inside and _has_classes(inside[name])),
        root,
    )


def _describe_expected(root: Path) -> str:
    return f"Expected {root}/<class>/*.jpg, or {root}/train/<class>/*.jpg and {root}/test/<class>/*.jpg."


def _list_folders(root: Path) -> dict[str, Path]:
    """By their names in small letters."""
    entries = (
        entry for entry in sorted(root.iterdir()) if entry.is_dir() and not is_ignored(entry.name)
    )
    return {entry.name.lower(): entry for entry in entries}


def _try(find: Callable[[], Source]) -> tuple[Source | None, str]:
    """A source, or what is wrong with it: so that all that is wrong can be said at once."""
    try:
        return find(), ""
    except ValueError as error:
        return None, str(error)


def _open_training(root: Path) -> Source:
    source = image_folder(root)
    if len(source.class_names) == 1:
        raise ValueError(
            f"{root} has photos of a single class, {source.class_names[0]}: there is nothing to "
            f"tell apart. Add "
            f"another. {group_by_reason(source.left_out)}".rstrip()
        )
    return source


def _has_classes(folder: Path) -> bool:
    """Whether it is a folder of classes and no class: a stray photo among several folders does not
    make it one.
    """
    entries = [entry for entry in folder.iterdir() if not is_ignored(entry.name)]
    num_folders = sum(map(Path.is_dir, entries))
    has_photos = any(is_photo(entry.name) and entry.is_file() for entry in entries)
    return num_folders > (1 if has_photos else 0)
