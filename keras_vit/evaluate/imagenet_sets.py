"""ImageNet's other test sets, in the order of the 1000 classes: ReaL, v2, ObjectNet, and any folder
of WordNet ids.

What lives here: which image lies where, and which of the 1000 classes it shows. ImageNet itself,
v2, A, R and Sketch are also data sets of TensorFlow Datasets with these classes in this order:
`sources.tfds("imagenet_v2/topimages", "test")`, `sources.tfds("imagenet_a", "test")`;
`by_wordnet_id` gives their classes readable names.
"""

import functools
import importlib.resources
import json
import os
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import tensorflow as tf
from absl import logging

from keras_vit.data import prepared
from keras_vit.data.sources import Source, image_folder, tfds
from keras_vit.data.transforms import decode
from keras_vit.evaluate.label_sets import LabelSets
from keras_vit.photos import LeftOut, walk

_NUM_CLASSES = 1000
_NUM_VALIDATION = 50_000
# Hugging Face's copy of ImageNet has the WordNet id behind the number.
_VALIDATION_NAME = re.compile(r"ILSVRC2012_val_(\d{8})(_n\d{8})?", re.IGNORECASE)
_OBJECTNET_BORDER = 2  # pixels


def by_wordnet_id(source: Source) -> Source:
    """Returns the same images with ImageNet's 1000 classes, found by the WordNet ids that the
    classes are named with.

    The source may have any of the 1000, in any order; `imagenette` of TensorFlow Datasets has ten.

    Raises:
        ValueError: If a class is none of the 1000.

    Example:
        >>> from keras_vit.data import sources
        >>> folder = sources.arrays(np.zeros((2, 8, 8), "uint8"), np.array([0, 1]), ["n01443537", "n01440764"])
        >>> found = by_wordnet_id(folder)
        >>> found.labels.tolist(), found.class_names[:2]
        ([1, 0], ('tench', 'goldfish'))
    """
    place = {wordnet_id: label for label, (wordnet_id, _) in enumerate(_rows("imagenet2012.tsv"))}
    unknown = [name for name in source.class_names if name not in place]
    if unknown:
        raise ValueError(
            f"{len(unknown)} of the {len(source.class_names)} classes of {source.name} are none of "
            f"ImageNet's 1000 "
            f"WordNet ids: {_some(unknown)}. Expected n01440764, n01443537 and so on."
        )
    return source.relabelled([place[name] for name in source.class_names], _names())


def imagenet_folder(path: str | os.PathLike) -> Source:
    """A folder of images with one folder for each class, named with its WordNet id:
    `path/n01440764/*.JPEG`.

    ImageNet's training and validation images are published so, and ImageNet-A, ImageNet-R and
    ImageNet-Sketch. Any part of the 1000 classes will do; labels are those of all 1000.

    Raises:
        ValueError: If there is no such folder, a class of it has no images, or is none of the 1000.
    """
    return by_wordnet_id(image_folder(path))


def imagenet_v2(path: str | os.PathLike) -> Source:
    """A folder of ImageNet v2 as published: `path/0/*.jpeg` to `path/999/*.jpeg`, named with the
    number of the class.

    Sorted as words these names are 0, 1, 10, 100, 101: here they are numbers. An early release had
    WordNet ids for names; `imagenet_folder` reads that one. TensorFlow Datasets has it as
    "imagenet_v2/matched-frequency", "imagenet_v2/threshold-0.7" and "imagenet_v2/topimages", which
    need nothing of this.

    Raises:
        ValueError: If there is no such folder, a class of it has no images, or is not named with a
            number below 1000.

    Source: arXiv:1902.10811; modestyachts/ImageNetV2.
    """
    source = image_folder(path)
    wrong = [name for name in source.class_names if not re.fullmatch(r"0|[1-9]\d{0,2}", name)]
    if wrong:
        raise ValueError(
            f"The classes of ImageNet v2 are folders named 0 to 999. {path} has others: "
            f"{_some(wrong)}. Folders named "
            "with WordNet ids are read with `imagenet_folder`."
        )
    if len(source.class_names) < _NUM_CLASSES:
        logging.warning(
            "%s has %d of the 1,000 classes of ImageNet v2.", path, len(source.class_names)
        )
    return source.relabelled([int(name) for name in source.class_names], _names())


def imagenet_real(images: str | os.PathLike, labels: str | os.PathLike) -> LabelSets:
    """ImageNet's validation images with the reassessed labels ("ReaL"): of some images several, of
    some none.

    An image is found by the number in its name. Of a part of the 50,000 that part is measured; the
    name of the source says so, and the log.

    Args:
        images: The folder of the validation images, ILSVRC2012_val_00000001.JPEG and so on; or of
            folders of them.
        labels: `real.json` of google-research/reassessed-imagenet: a list of 50,000 lists of
            classes, 0 to 999. The first is of ILSVRC2012_val_00000001.JPEG.

    Raises:
        ValueError: If there is no such folder or file, an image has no number, or one that is not
            in the list, or the list is none of such classes.

    Source: arXiv:2006.07159; google-research/reassessed-imagenet, README.md, "Description of the
        files".
    """
    lists = _real_lists(Path(labels).expanduser())
    root = Path(images).expanduser()
    numbered, left_out = _validation_images(root)
    beyond = [path.name for number, path in numbered.items() if not 1 <= number <= len(lists)]
    if beyond:
        raise ValueError(
            f"{labels} has {len(lists):,} lists, for the images 1 to {len(lists):,}, and {root} "
            f"has {_some(beyond)}. "
            f"The published file has {_NUM_VALIDATION:,}."
        )
    numbers = sorted(numbered)
    right = tuple(lists[number - 1] for number in numbers)
    name = f"ImageNet ReaL in {root}"
    if len(numbers) < len(lists):
        name = f"{name} ({len(numbers):,} of {len(lists):,} images)"
        logging.warning("%s: the others are not there.", name)
    files = _files([str(numbered[number]) for number in numbers], right, name, left_out)
    return LabelSets(source=files, right=right)


def imagenet_real_tfds(
    split: str = "validation", *, data_dir: str | os.PathLike | None = None
) -> LabelSets:
    """The same images and sets from TensorFlow Datasets: "imagenet2012_real".

    The sets are found by a pass over the records, which decodes no image.

    Args:
        split, data_dir: As in `keras_vit.data.sources.tfds`. The data set is prepared on first use,
            for which the library asks for ILSVRC2012_img_val.tar.

    Raises:
        ValueError: If there is no such split, or the data set cannot be prepared here.
    """
    name = "imagenet2012_real"
    source = tfds(
        name,
        split,
        data_dir=data_dir,
        label=lambda facts: facts["original_label"],
        class_names=_names(),
    )
    builder = prepared.prepare(name, data_dir)
    records, features = prepared.records(builder, split), builder.info.features
    read, decoders = records.reader(), {"image": prepared.library().decode.SkipDecoding()}

    def right(index: tf.Tensor) -> tf.Tensor:
        return features.deserialize_example(read(index), decoders=decoders)["real_label"]

    sets = tf.data.Dataset.range(len(records)).map(right, num_parallel_calls=tf.data.AUTOTUNE)
    return LabelSets(
        source=source, right=tuple(tuple(labels.tolist()) for labels in sets.as_numpy_iterator())
    )


def objectnet(path: str | os.PathLike, *, shared_only: bool = False) -> LabelSets:
    """ObjectNet's images of the 113 classes that it shares with ImageNet; those of the other 200
    are left out.

    Nine of the 113 are several classes of ImageNet: any of barber chair, folding chair and rocking
    chair is right for a chair. The images have a red border of 2 pixels, which is cut off. Their
    licence forbids learning from them.

    An answer may be any of the 1000 classes, as in the scoring of ObjectNet's authors. BiT and the
    ViT paper say that they follow them, and compare with their figures; the code of neither is
    public, so whether they cut off the border is not known. The paper's figures (appendix D.9: 61.7
    % top-1, 82.1 % top-5 for ViT-H/14) are of the middle 480 pixels of images whose shorter side is
    512, which `eval_crop` has no policy for.

    Args:
        path: The folder with ObjectNet's folder `images`, or that folder:
            `images/alarm_clock/*.png`.
        shared_only: An answer may only be one of the 125 classes that the 113 are, as in
            modestyachts/imagenet-testbed and mlfoundations/wise-ft. That is never harder.

    Raises:
        ValueError: If there is no such folder, it has none of the 113 classes, or a class has no
            images.

    Source: Barbu et al., NeurIPS 2019; abarbu/objectnet-template-tensorflow, objectnet_eval.py and
    validate_and_score.py, for the scoring; abarbu/objectnet-template-pytorch,
    objectnet_pytorch_dataloader.py, for the border; arXiv:1912.11370, section 3.6 and appendix B;
    `keras_vit/labels/README.md` for the classes.
    """
    root = Path(path).expanduser()
    everything = image_folder(root / "images" if (root / "images").is_dir() else root)
    shared = objectnet_classes()
    known = [label for label, name in enumerate(everything.class_names) if name in shared]
    if not known:
        raise ValueError(
            f"{everything.name} has none of the 113 classes of ObjectNet that ImageNet has too. "
            f"Expected folders such "
            f"as {_some(list(shared)[:3])}. It has: {_some(everything.class_names)}."
        )
    if len(known) < len(shared):
        logging.warning("%s has %d of the 113 classes of ObjectNet.", everything.name, len(known))
    names = [everything.class_names[label] for label in everything.labels]
    part = everything.subset(np.flatnonzero(np.isin(everything.labels, known)))
    first = part.relabelled(
        [shared.get(name, (-1,))[0] for name in everything.class_names], _names()
    )
    return LabelSets(
        source=replace(
            first,
            name=f"ObjectNet in {root}",
            read=lambda index: _without_border(*first.read(index)),
        ),
        right=tuple(shared[name] for name in names if name in shared),
        allowed=tuple(sorted(sum(shared.values(), ()))) if shared_only else None,
    )


@functools.cache
def objectnet_classes() -> dict[str, tuple[int, ...]]:
    """Returns, for the folders of the 113 classes that ObjectNet shares with ImageNet, ImageNet's
    classes.

    Example:
        >>> objectnet_classes()["chair"]
        (423, 559, 765)
    """
    place = {wordnet_id: label for label, (wordnet_id, _) in enumerate(_rows("imagenet2012.tsv"))}
    return {
        folder: tuple(place[wordnet_id] for wordnet_id in ids.split())
        for folder, ids in _rows("objectnet.tsv")
    }


def _without_border(image: tf.Tensor, label: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    pixels = decode(image, tf.constant([0, 0]))
    return pixels[_OBJECTNET_BORDER:-_OBJECTNET_BORDER, _OBJECTNET_BORDER:-_OBJECTNET_BORDER], label


def _files(
    paths: Sequence[str], right: Sequence[Sequence[int]], name: str, left_out: Sequence[LeftOut]
) -> Source:
    """Images whose label is their first right class, or -1."""
    labels = np.array([classes[0] if classes else -1 for classes in right], np.int64)
    all_paths, all_labels = tf.constant(paths), tf.constant(labels)
    return Source(
        name=name,
        class_names=_names(),
        num_examples=len(paths),
        read=lambda index: (tf.io.read_file(all_paths[index]), all_labels[index]),
        locate=paths.__getitem__,
        labels=labels,
        left_out=tuple(left_out),
    )


def _validation_images(root: Path) -> tuple[dict[int, Path], list[LeftOut]]:
    """The images in a folder and in those below it, by the number in their names; and what is left
    out.
    """
    expected = f"Expected {root}/ILSVRC2012_val_00000001.JPEG and so on, or folders of such files."
    if not root.is_dir():
        raise ValueError(f"There is no folder {root}. {expected}")
    paths, left_out = walk(root)
    if not paths:
        raise ValueError(f"There are no images in {root}. {expected}")
    matches = [_VALIDATION_NAME.fullmatch(path.stem) for path in paths]
    others = [path.name for path, match in zip(paths, matches, strict=True) if not match]
    if others:
        raise ValueError(
            f"{len(others)} of the {len(paths)} images in {root} have no number in their names: "
            f"{_some(others)}. "
            f"{expected}"
        )
    numbered: dict[int, Path] = {}
    for path, match in zip(paths, matches, strict=True):
        other = numbered.setdefault(int(match[1]), path)
        if other != path:
            raise ValueError(
                f"{other} and {path} are the same image of ImageNet. Remove one of them."
            )
    return numbered, left_out


def _real_lists(path: Path) -> list[tuple[int, ...]]:
    expected = "Expected the real.json of google-research/reassessed-imagenet: a list of lists of classes, 0 to 999."
    if not path.is_file():
        raise ValueError(f"There is no file {path}. {expected}")
    try:
        lists = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is not JSON ({error}). {expected}") from error
    if not isinstance(lists, list):
        raise ValueError(f"{path} holds a {type(lists).__name__}. {expected}")
    for number, labels in enumerate(lists, 1):
        if not isinstance(labels, list) or not all(
            type(x) is int and 0 <= x < _NUM_CLASSES for x in labels
        ):
            raise ValueError(f"Place {number} of {path} is {str(labels)[:100]}. {expected}")
    return [tuple(labels) for labels in lists]


@functools.cache
def _names() -> tuple[str, ...]:
    return tuple(name for _, name in _rows("imagenet2012.tsv"))


@functools.cache
def _rows(file: str) -> list[tuple[str, str]]:
    text = importlib.resources.files("keras_vit").joinpath("labels", file).read_text("utf-8")
    return [tuple(line.split("\t")) for line in text.splitlines()]


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:10]) + (", ..." if len(names) > 10 else "")
