"""How a folder of images is laid out: with a test set of its own, or one folder for each class and no more.

What lives here: telling one from the other, and what was passed over. Reading the images is the business of
`sources.py`.
"""

import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from keras_vit.data.sources import IMAGE_SUFFIXES, Source, image_folder

TRAINING = ("train", "training")
# What to measure on, the first that is there. Nothing is chosen by it, so it may be the test set.
MEASURING = ("test", "val", "validation", "valid")


def training_and_test(path: str | os.PathLike) -> tuple[Source, Source | None]:
    """Returns the training images of a folder, and its test images, or None if it has no test set.

    Either `path/train/<class>/*` and `path/test/<class>/*` (or val, validation, valid), or `path/<class>/*`. The names
    of the two folders may be written in capitals. A class may be called "train", if its images lie in it.

    Raises:
        ValueError: If there is no such folder, or it is not laid out so.
    """
    root = Path(path).expanduser().resolve()
    if not root.exists():
        raise ValueError(f"There is no folder {root}. {_expected(root)}")
    if not root.is_dir():
        raise ValueError(f"{root} is a file. {_expected(root)}")
    folders = {entry.name.lower(): entry for entry in sorted(root.iterdir()) if entry.is_dir()}
    training = next((folders[name] for name in TRAINING if name in folders and _holds_classes(folders[name])), None)
    if training is None:
        return _classes_of(root), None
    source = _classes_of(training)
    test = next((folders[name] for name in MEASURING if name in folders), None)
    return source, None if test is None else image_folder(test, class_names=source.class_names)


def to_measure_on(path: str | os.PathLike) -> Path:
    """Returns the folder of the classes to measure on: `path/test` (or val, validation, valid) if that holds some.

    Raises:
        ValueError: If there is no such folder.
    """
    root = Path(path).expanduser().resolve()
    if not root.is_dir():
        raise ValueError(f"There is no folder {root}. {_expected(root)}")
    inside = {entry.name.lower(): entry for entry in sorted(root.iterdir()) if entry.is_dir()}
    return next((inside[name] for name in MEASURING if name in inside and _holds_classes(inside[name])), root)


def passed_over(path: str | os.PathLike) -> Counter[str]:
    """Returns the suffixes of the files below a folder that are not taken for images, and how many there are of each.

    Hidden files do not count.

    Example:
        >>> Path("cat").mkdir()
        >>> _ = Path("cat/1.webp").write_bytes(b""), Path("cat/2.jpg").write_bytes(b"")
        >>> passed_over(".")
        Counter({'.webp': 1})
    """
    return Counter(
        Path(name).suffix.lower() or "no suffix"
        for _, _, names in os.walk(Path(path).expanduser())
        for name in names
        if not name.startswith(".") and not name.lower().endswith(IMAGE_SUFFIXES)
    )


def _expected(root: Path) -> str:
    return f"Expected {root}/<class>/*.jpg, or {root}/train/<class>/*.jpg and {root}/test/<class>/*.jpg."


def _classes_of(root: Path) -> Source:
    folders = [entry for entry in root.iterdir() if entry.is_dir() and not entry.name.startswith(".")]
    if not folders:
        images = sum(1 for _ in _images(root))
        what = f"{images} images, but no folders" if images else "no images"
        raise ValueError(f"There are {what} in {root}. {_expected(root)}")
    if len(folders) == 1:
        raise ValueError(f"{root} has a single class, {folders[0].name}: there is nothing to tell apart. Add another.")
    return image_folder(root)


def _holds_classes(folder: Path) -> bool:
    return next(_images(folder), None) is None and any(entry.is_dir() for entry in folder.iterdir())


def _images(folder: Path) -> Iterator[Path]:
    return (entry for entry in folder.iterdir() if entry.name.lower().endswith(IMAGE_SUFFIXES) and entry.is_file())
