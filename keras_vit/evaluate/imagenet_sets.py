"""Test sets with ImageNet's 1000 classes: ReaL, v2, ObjectNet, and folders named by WordNet id.

TensorFlow Datasets also has ImageNet, v2, A, R and Sketch with these classes in this order, such as
`sources.tfds("imagenet_v2/topimages", "test")`. `by_wordnet_id` replaces their WordNet ids by
readable names.
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
from keras_vit.data.contents import files_sha256
from keras_vit.data.sources import Source, image_folder, tfds
from keras_vit.data.transforms import decode
from keras_vit.evaluate.label_sets import LabelSets
from keras_vit.photos import LeftOut, walk

_NUM_CLASSES = 1000
_NUM_VALIDATION = 50_000
# In Hugging Face's copy of ImageNet, the WordNet id follows the number.
_VALIDATION_NAME = re.compile(r"ILSVRC2012_val_(\d{8})(_n\d{8})?", re.IGNORECASE)
_OBJECTNET_BORDER = 2  # pixels


def by_wordnet_id(source: Source) -> Source:
    """Returns the same images with ImageNet's 1000 classes, for a source named by WordNet ids.

    The source may have any subset of the classes, in any order; `imagenette` of TensorFlow Datasets
    has ten.

    Raises:
        ValueError: If a class is not one of the 1000.

    Example:
        >>> from keras_vit.data import sources
        >>> folder = sources.arrays(np.zeros((2, 8, 8), "uint8"), np.array([0, 1]), ["n01443537", "n01440764"])
        >>> found = by_wordnet_id(folder)
        >>> found.labels.tolist(), found.class_names[:2]
        ([1, 0], ('tench', 'goldfish'))
    """
    place = {
        wordnet_id: label for label, (wordnet_id, _) in enumerate(_read_rows("imagenet2012.tsv"))
    }
    unknown = [name for name in source.class_names if name not in place]
    if unknown:
        raise ValueError(
            f"{len(unknown)} of the {len(source.class_names)} classes of {source.name} are not "
            f"among ImageNet's 1000 WordNet ids: {_list_some(unknown)}. Expected n01440764, n01443537, "
            f"..."
        )
    return source.relabelled([place[name] for name in source.class_names], _read_names())


def imagenet_folder(path: str | os.PathLike) -> Source:
    """Opens a folder with one folder per class, named by WordNet id: `path/n01440764/*.JPEG`.

    ImageNet, ImageNet-A, ImageNet-R and ImageNet-Sketch are published in this layout. The folder
    may contain any subset of the classes; labels are those of all 1000.

    Raises:
        ValueError: If the folder does not exist, a class has no images, or is not one of the 1000.
    """
    return by_wordnet_id(image_folder(path))


def imagenet_v2(path: str | os.PathLike) -> Source:
    """Opens a folder of ImageNet v2 as published: `path/0/*.jpeg` to `path/999/*.jpeg`.

    The names are class numbers, and are sorted as numbers, not as text (0, 1, 10, 100, 101). An
    early release used WordNet ids; open it with `imagenet_folder`. TensorFlow Datasets has the same
    images as "imagenet_v2/matched-frequency", "imagenet_v2/threshold-0.7" and
    "imagenet_v2/topimages", which do not need this function.

    Raises:
        ValueError: If the folder does not exist, a class has no images, or its name is not a number
            below 1000.

    Source: arXiv:1902.10811; modestyachts/ImageNetV2.
    """
    source = image_folder(path)
    wrong = [name for name in source.class_names if not re.fullmatch(r"0|[1-9]\d{0,2}", name)]
    if wrong:
        raise ValueError(
            f"The classes of ImageNet v2 are folders named 0 to 999. {path} has others: "
            f"{_list_some(wrong)}. For folders named by WordNet ids, use `imagenet_folder`."
        )
    if len(source.class_names) < _NUM_CLASSES:
        logging.warning(
            "%s has %d of the 1,000 classes of ImageNet v2.", path, len(source.class_names)
        )
    return source.relabelled([int(name) for name in source.class_names], _read_names())


def imagenet_real(images: str | os.PathLike, labels: str | os.PathLike) -> LabelSets:
    """Opens ImageNet's validation images with the reassessed labels ("ReaL").

    Each image has a set of labels, which may be empty. Images are identified by the number in their
    names. If only a part of the 50,000 images is present, that part is evaluated; the name of the
    source and the log state this.

    Args:
        images: Folder of the validation images, ILSVRC2012_val_00000001.JPEG and so on, or of
            folders of them.
        labels: `real.json` of google-research/reassessed-imagenet: a list of 50,000 lists of
            classes, 0 to 999. The first is for ILSVRC2012_val_00000001.JPEG.

    Raises:
        ValueError: If the folder or the file does not exist, an image has no number or one beyond
            the list, or the file has another content.

    Source: arXiv:2006.07159; google-research/reassessed-imagenet, README.md, "Description of the
    files".
    """
    lists = _read_real_labels(Path(labels).expanduser())
    root = Path(images).expanduser()
    numbered, left_out = _find_validation_images(root)
    beyond = [path.name for number, path in numbered.items() if not 1 <= number <= len(lists)]
    if beyond:
        raise ValueError(
            f"{labels} has {len(lists):,} lists, for the images 1 to {len(lists):,}, but {root} "
            f"contains {_list_some(beyond)}. The published file has {_NUM_VALIDATION:,} lists."
        )
    numbers = sorted(numbered)
    right = tuple(lists[number - 1] for number in numbers)
    name = f"ImageNet ReaL in {root}"
    if len(numbers) < len(lists):
        name = f"{name} ({len(numbers):,} of {len(lists):,} images)"
        logging.warning("%s: the other images are missing.", name)
    files = _make_source(root, [str(numbered[number]) for number in numbers], right, name, left_out)
    return LabelSets(source=files, right=right, is_complete=len(numbers) == len(lists))


def imagenet_real_tfds(
    split: str = "validation", *, data_dir: str | os.PathLike | None = None
) -> LabelSets:
    """Opens the same images and labels from TensorFlow Datasets: "imagenet2012_real".

    The labels are read in a pass over the records, without decoding images.

    Args:
        split, data_dir: As in `keras_vit.data.sources.tfds`. The data set is prepared on first use,
            which requires ILSVRC2012_img_val.tar.

    Raises:
        ValueError: If the split does not exist, or the data set cannot be prepared.
    """
    name = "imagenet2012_real"
    source = tfds(
        name,
        split,
        data_dir=data_dir,
        label=lambda facts: facts["original_label"],
        class_names=_read_names(),
    )
    builder = prepared.prepare(name, data_dir)
    records, features = prepared.records(builder, split), builder.info.features
    read, decoders = records.reader(), {"image": prepared.library().decode.SkipDecoding()}

    @tf.autograph.experimental.do_not_convert
    def right(index: tf.Tensor) -> tf.Tensor:
        return features.deserialize_example(read(index), decoders=decoders)["real_label"]

    sets = tf.data.Dataset.range(len(records)).map(right, num_parallel_calls=tf.data.AUTOTUNE)
    return LabelSets(
        source=source,
        right=tuple(tuple(labels.tolist()) for labels in sets.as_numpy_iterator()),
        is_complete=len(records) == builder.info.splits.total_num_examples,
    )


def objectnet(path: str | os.PathLike, *, shared_only: bool = False) -> LabelSets:
    """Opens ObjectNet's images of the 113 classes that it shares with ImageNet.

    The other 200 classes are excluded. Nine of the 113 correspond to several classes of ImageNet:
    for a chair, barber chair, folding chair and rocking chair are correct. The images have a red
    border of 2 pixels, which is cropped. Their licence forbids training on them.

    Predictions may be any of the 1000 classes, as in the scoring of ObjectNet's authors. BiT and
    the ViT paper state that they follow this scoring, and compare with its figures. Their code is
    not public, so it is unknown whether they crop the border. The paper's figures (appendix D.9:
    61.7 % top-1, 82.1 % top-5 for ViT-H/14) use the central 480 pixels of images whose shorter side
    is 512, for which `eval_crop` has no policy.

    Args:
        path: Folder that contains ObjectNet's folder `images`, or that folder:
            `images/alarm_clock/*.png`.
        shared_only: Allows only predictions of the 125 ImageNet classes that correspond to the 113,
            as in modestyachts/imagenet-testbed and mlfoundations/wise-ft. Accuracy cannot decrease.

    Raises:
        ValueError: If the folder does not exist, has none of the 113 classes, or a class has no
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
            f"{everything.name} has none of the 113 classes that ObjectNet shares with ImageNet. "
            f"Expected folders such as {_list_some(list(shared)[:3])}. Received: "
            f"{_list_some(everything.class_names)}."
        )
    if len(known) < len(shared):
        logging.warning("%s has %d of the 113 classes of ObjectNet.", everything.name, len(known))
    names = [everything.class_names[label] for label in everything.labels]
    part = everything.subset(np.flatnonzero(np.isin(everything.labels, known)))
    first = part.relabelled(
        [shared.get(name, (-1,))[0] for name in everything.class_names], _read_names()
    )
    return LabelSets(
        source=replace(
            first,
            name=f"ObjectNet in {root}",
            read=lambda index: _crop_border(*first.read(index)),
        ),
        right=tuple(shared[name] for name in names if name in shared),
        allowed=tuple(sorted(sum(shared.values(), ()))) if shared_only else None,
        is_complete=len(known) == len(shared),
    )


@functools.cache
def objectnet_classes() -> dict[str, tuple[int, ...]]:
    """Maps the folders of the 113 classes that ObjectNet shares with ImageNet to ImageNet's classes.

    Example:
        >>> objectnet_classes()["chair"]
        (423, 559, 765)
    """
    place = {
        wordnet_id: label for label, (wordnet_id, _) in enumerate(_read_rows("imagenet2012.tsv"))
    }
    return {
        folder: tuple(place[wordnet_id] for wordnet_id in ids.split())
        for folder, ids in _read_rows("objectnet.tsv")
    }


def imagenet_classes(names: Sequence[str]) -> list[int] | None:
    """Returns the classes of ImageNet that 1000 names stand for; None if they are other names.

    Args:
        names: WordNet ids or class numbers in any order, or the readable names of this package in
            ImageNet's order. Two of these are the same word, so their order counts.

    Example:
        >>> imagenet_classes(["tench", "goldfish"]) is None
        True
        >>> imagenet_classes([str(number) for number in reversed(range(1000))])[:3]
        [999, 998, 997]
    """
    if tuple(names) == _read_names():
        return list(range(_NUM_CLASSES))
    place = {
        wordnet_id: label for label, (wordnet_id, _) in enumerate(_read_rows("imagenet2012.tsv"))
    } | {str(label): label for label in range(_NUM_CLASSES)}
    classes = [place.get(name, -1) for name in names]
    return classes if sorted(classes) == list(range(_NUM_CLASSES)) else None


def _crop_border(image: tf.Tensor, label: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    pixels = decode(image, tf.constant([0, 0]))
    return pixels[_OBJECTNET_BORDER:-_OBJECTNET_BORDER, _OBJECTNET_BORDER:-_OBJECTNET_BORDER], label


def _make_source(
    root: Path,
    paths: Sequence[str],
    right: Sequence[Sequence[int]],
    name: str,
    left_out: Sequence[LeftOut],
) -> Source:
    """Returns a source whose labels are the first correct classes, or -1."""
    labels = np.array([classes[0] if classes else -1 for classes in right], np.int64)
    all_paths, all_labels = tf.constant(paths), tf.constant(labels)
    return Source(
        name=name,
        class_names=_read_names(),
        num_examples=len(paths),
        read=lambda index: (tf.io.read_file(all_paths[index]), all_labels[index]),
        locate=paths.__getitem__,
        labels=labels,
        left_out=tuple(left_out),
        content=lambda: files_sha256(paths),
        folder=str(root),
    )


def _find_validation_images(root: Path) -> tuple[dict[int, Path], list[LeftOut]]:
    """Finds the images in a folder and its subfolders, by number; also returns skipped files."""
    expected = f"Expected {root}/ILSVRC2012_val_00000001.JPEG and so on, or folders of such files."
    if not root.is_dir():
        raise ValueError(f"There is no folder {root}. {expected}")
    paths, left_out = walk(root)
    if not paths:
        raise ValueError(f"{root} contains no images. {expected}")
    matches = [_VALIDATION_NAME.fullmatch(path.stem) for path in paths]
    others = [path.name for path, match in zip(paths, matches, strict=True) if not match]
    if others:
        raise ValueError(
            f"{len(others)} of the {len(paths)} images in {root} have no number in their names: "
            f"{_list_some(others)}. {expected}"
        )
    numbered: dict[int, Path] = {}
    for path, match in zip(paths, matches, strict=True):
        other = numbered.setdefault(int(match[1]), path)
        if other != path:
            raise ValueError(
                f"{other} and {path} are the same image of ImageNet. Remove one of them."
            )
    return numbered, left_out


def _read_real_labels(path: Path) -> list[tuple[int, ...]]:
    expected = "Expected the real.json of google-research/reassessed-imagenet: a list of lists of classes, 0 to 999."
    if not path.is_file():
        raise ValueError(f"There is no file {path}. {expected}")
    try:
        lists = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is not JSON ({error}). {expected}") from error
    if not isinstance(lists, list):
        raise ValueError(f"{path} contains a {type(lists).__name__}. {expected}")
    for number, labels in enumerate(lists, 1):
        if not isinstance(labels, list) or not all(
            type(x) is int and 0 <= x < _NUM_CLASSES for x in labels
        ):
            raise ValueError(f"Entry {number} of {path} is {str(labels)[:100]}. {expected}")
    return [tuple(labels) for labels in lists]


@functools.cache
def _read_names() -> tuple[str, ...]:
    return tuple(name for _, name in _read_rows("imagenet2012.tsv"))


@functools.cache
def _read_rows(file: str) -> list[tuple[str, str]]:
    text = importlib.resources.files("keras_vit").joinpath("labels", file).read_text("utf-8")
    return [tuple(line.split("\t")) for line in text.splitlines()]


def _list_some(names: Sequence[str]) -> str:
    return ", ".join(names[:10]) + (", ..." if len(names) > 10 else "")
