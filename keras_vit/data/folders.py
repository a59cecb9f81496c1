"""Layouts of image folders: class folders alone, or a training set and a test set."""

import itertools
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from absl import logging

from keras_vit.data.sources import Source, image_folder
from keras_vit.photos import LeftOut, is_ignored, is_photo, walk
from keras_vit.writing import group_by_reason

TRAINING = ("train", "training")
# Names of the evaluation set, in order of preference. It may be the test set, because nothing is
# selected by its results.
MEASURING = ("test", "val", "validation", "valid")


def training_and_test(path: str | os.PathLike) -> tuple[Source, Source | None]:
    """Returns the training set of a folder, and its test set or None.

    The layout is either `path/train/<class>/*` and `path/test/<class>/*` (or val, validation,
    valid), or `path/<class>/*`. The case of these two names is ignored. A class may be named
    "train" if its images are directly in that folder. Photos of a class may be in nested folders.

    The test set is the first of these folders that has photos of the classes. Class folders without
    photos are left out, and so are classes of the test set that are not in the training set, and
    folders of photos beside both sets. `left_out` of the sources lists them.

    Raises:
        ValueError: If there is no such folder, if it has fewer than two classes with photos, or if
            its test set has none of these classes. The message lists all problems. Also if folders
            may be parts of a data set or classes: a training set without a test set beside folders
            of photos; two names of a set that differ in case only; or folders without photos of
            their own that share the names of two or more folders, of which one is named as a part,
            such as training_set.
    """
    root = Path(path).expanduser().resolve()
    if not root.exists():
        raise ValueError(f"There is no folder {root}. {_describe_expected(root)}")
    if not root.is_dir():
        raise ValueError(f"{root} is a file. {_describe_expected(root)}")
    inside = _list_folders(root)
    _check_case(root, inside)
    training = _find_part(inside, TRAINING)
    if training is None:
        _refuse_parts(root, inside)
        return _open_training(root), None
    tests = [folder for name in MEASURING for folder in inside if folder.name.lower() == name]
    beside = _find_beside(inside, [training, *tests])
    if beside and not tests:
        raise ValueError(_describe_ambiguous(training, beside))
    learned, problem = _try(lambda: _open_training(training))
    names = None if learned is None else learned.class_names
    measured, others = _open_first(tests, names)
    if learned is None or (tests and measured is None):
        raise ValueError("\n".join(filter(None, (problem, *others))))
    return replace(learned, left_out=(*learned.left_out, *beside)), measured


def to_measure_on(path: str | os.PathLike) -> Path:
    """Returns the folder to evaluate on: `path/test` (or val, validation, valid) if it contains
    classes, else `path`.

    A warning lists the folders of photos beside it, unless there is a training set, too.

    Raises:
        ValueError: If there is no such folder, or two names differ in case only.
    """
    root = Path(path).expanduser().resolve()
    if not root.is_dir():
        raise ValueError(f"There is no folder {root}. {_describe_expected(root)}")
    inside = _list_folders(root)
    _check_case(root, inside)
    part = _find_part(inside, MEASURING)
    if part is None:
        return root
    if not any(folder.name.lower() in TRAINING for folder in inside):
        named = [folder for folder in inside if folder.name.lower() in MEASURING]
        if beside := _find_beside(inside, [part, *named]):
            logging.warning("%s is evaluated. %s", part, group_by_reason(beside))
    return part


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


def _list_folders(root: Path) -> list[Path]:
    return [
        entry for entry in sorted(root.iterdir()) if entry.is_dir() and not is_ignored(entry.name)
    ]


def _check_case(root: Path, inside: Sequence[Path]) -> None:
    """Raises a ValueError if two folders of classes would both be the training or the test set."""
    for name in (*TRAINING, *MEASURING):
        same = [
            entry.name for entry in inside if entry.name.lower() == name and _has_classes(entry)
        ]
        if len(same) > 1:
            raise ValueError(
                f"{root} contains {' and '.join(same)}, which differ in case only. Merge them, or "
                "rename one."
            )


def _find_part(inside: Sequence[Path], names: Sequence[str]) -> Path | None:
    """Returns the first folder with one of these names that contains classes, or None."""
    candidates = [entry for name in names for entry in inside if entry.name.lower() == name]
    return next(filter(_has_classes, candidates), None)


def _find_beside(inside: Sequence[Path], parts: Sequence[Path]) -> list[LeftOut]:
    """Returns the folders with photos that are not among these parts."""
    counts = {folder: len(walk(folder).photos) for folder in inside if folder not in parts}
    return [
        LeftOut(folder, f"a folder beside {parts[0].name}, not read, {count:,} photos")
        for folder, count in counts.items()
        if count
    ]


def _describe_ambiguous(training: Path, beside: Sequence[LeftOut]) -> str:
    names = ", ".join(left.path.name for left in beside[:10])
    return (
        f"{training} contains folders of classes, and beside it there are folders of photos: {names}. "
        f"If {training.name} is the training set, move the others away, or name the test set test. "
        f"If it is a class, put its photos directly into it."
    )


def _open_first(
    tests: Sequence[Path], names: Sequence[str] | None
) -> tuple[Source | None, list[str]]:
    """Returns the first test set that has photos of the classes, and why earlier ones have none.

    Its `left_out` lists the earlier ones.
    """
    problems, skipped = [], []
    for folder in tests:
        found, problem = _try(partial(image_folder, folder, class_names=names))
        if found is not None:
            return replace(found, left_out=(*found.left_out, *skipped)), problems
        problems.append(problem)
        skipped.append(LeftOut(folder, "no photos of the classes in it, so not the test set"))
    return None, problems


_PART = re.compile(
    r"(train(ing)?|test(ing)?|val(id|idation)?|trainval|eval(uation)?|dev|holdout|folds?|splits?)"
    r"(set|data|images)?",
    re.IGNORECASE,
)


def _looks_like_part(name: str) -> bool:
    """Returns whether a folder is named like a part of a data set: test_set, fold1, TrainImages."""
    words = re.findall(r"[A-Z]?[a-z]+|[A-Z]+", name)
    return any(_PART.fullmatch(word) for word in words)


def _refuse_parts(root: Path, classes: Iterable[Path]) -> None:
    """Raises a ValueError if two classes look like parts of a data set: training_set, test_set."""
    inside = {folder: _list_inner_folders(folder) for folder in classes}
    holders = Counter(name for names in inside.values() for name in names)
    # Only names in several folders matter. Thousands of classes would have millions of pairs.
    repeated = {
        folder: {name for name in names if holders[name] > 1} for folder, names in inside.items()
    }
    several = [(folder, names) for folder, names in repeated.items() if len(names) > 1]
    named = [each for each in several if _looks_like_part(each[0].name)]
    for (one, names), (other, others) in itertools.product(named, several):
        if one != other and len(names & others) > 1:
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
