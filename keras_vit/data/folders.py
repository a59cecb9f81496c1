"""Layouts of image folders: class folders alone, or a training set and a test set."""

import itertools
import os
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path

from keras_vit.data.sources import Source, image_folder
from keras_vit.photos import is_ignored, is_photo
from keras_vit.writing import group_by_reason

TRAINING = ("train", "training")
# Names of the evaluation set, in order of preference. It may be the test set, because nothing is
# selected by its results.
MEASURING = ("test", "val", "validation", "valid")


def training_and_test(path: str | os.PathLike) -> tuple[Source, Source | None]:
    """Returns the training set of a folder, and its test set or None.

    The layout is either `path/train/<class>/*` and `path/test/<class>/*` (or val, validation,
    valid), or `path/<class>/*`. The case of these two names is ignored. A class may be named
    "train" if its images are directly in that folder.

    Class folders without photos are left out, and so are classes of the test set that are not in
    the training set. `left_out` of the sources lists them.

    Raises:
        ValueError: If there is no such folder, if it has fewer than two classes with photos, or if
            its test set has none of these classes. The message lists all problems. Also if there is
            no training set, and folders without photos of their own share the names of two or more
            folders: they look like parts of a data set, not like classes.
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
    if training is None:
        _refuse_parts(root, folders.values())
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
    """Returns the folder to evaluate on: `path/test` (or val, validation, valid) if it contains
    classes, else `path`.

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


def check_outside(output: str | os.PathLike, images: str | os.PathLike, name: str) -> None:
    """Checks that an output folder is not inside a folder of images.

    The figures of a report or of an export would be read as images by the next command, and their
    folder as a class.

    Args:
        output: The folder to write to.
        images: The folder of the images.
        name: Name of the images, for the message.

    Raises:
        ValueError: If it is inside.

    Example:
        >>> check_outside("pets/report", "pets", "data")
        Traceback (most recent call last):
        ValueError: pets/report is inside the folder of the data, pets, where it would be read as
        images. Choose another `output`.
    """
    inner, outer = (Path(folder).expanduser().resolve() for folder in (output, images))
    if inner.is_relative_to(outer):
        raise ValueError(
            f"{output} is inside the folder of the {name}, {images}, where it would be read as "
            "images. Choose another `output`."
        )


def _describe_expected(root: Path) -> str:
    return f"Expected {root}/<class>/*.jpg, or {root}/train/<class>/*.jpg and {root}/test/<class>/*.jpg."


def _list_folders(root: Path) -> dict[str, Path]:
    """Returns the folders in a folder by their names in lower case."""
    entries = (
        entry for entry in sorted(root.iterdir()) if entry.is_dir() and not is_ignored(entry.name)
    )
    return {entry.name.lower(): entry for entry in entries}


def _refuse_parts(root: Path, classes: Iterable[Path]) -> None:
    """Raises a ValueError if two classes look like parts of a data set: training_set, test_set."""
    inside = {folder: _list_inner_folders(folder) for folder in classes}
    holders = Counter(name for names in inside.values() for name in names)
    # Only names in several folders matter. Thousands of classes would have millions of pairs.
    repeated = {
        folder: {name for name in names if holders[name] > 1} for folder, names in inside.items()
    }
    for (one, names), (other, others) in itertools.combinations(
        ((folder, names) for folder, names in repeated.items() if len(names) > 1), 2
    ):
        if len(names & others) > 1:
            raise ValueError(
                f"{one.name} and {other.name} in {root} hold no photos, and both hold the folders "
                f"{', '.join(sorted(names & others)[:10])}. They look like parts of a data set, not "
                f"like classes: rename them to train and test. If they are classes, put their photos "
                f"directly into them."
            )


def _list_inner_folders(folder: Path) -> set[str]:
    """Returns the names of the folders in a folder; none if it also holds photos."""
    names = set()
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if is_ignored(entry.name):
                    continue
                if entry.is_dir():
                    names.add(entry.name)
                elif is_photo(entry.name):
                    return set()
    except OSError:  # `image_folder` leaves out what cannot be read
        return set()
    return names


def _try(find: Callable[[], Source]) -> tuple[Source | None, str]:
    """Returns a source, or None and the error message, so that several errors can be reported."""
    try:
        return find(), ""
    except ValueError as error:
        return None, str(error)


def _open_training(root: Path) -> Source:
    source = image_folder(root)
    if len(source.class_names) == 1:
        raise ValueError(
            f"{root} has photos of a single class, {source.class_names[0]}. Training needs two or "
            f"more classes. {group_by_reason(source.left_out)}".rstrip()
        )
    return source


def _has_classes(folder: Path) -> bool:
    """Returns whether a folder contains class folders, and is not a class itself.

    A folder with photos counts as a folder of classes if it also contains several folders.
    """
    entries = [entry for entry in folder.iterdir() if not is_ignored(entry.name)]
    num_folders = sum(map(Path.is_dir, entries))
    has_photos = any(is_photo(entry.name) and entry.is_file() for entry in entries)
    return num_folders > (1 if has_photos else 0)
