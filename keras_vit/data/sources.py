"""Sources of labelled images: arrays, image folders, TensorFlow Datasets, digits, fractals.

A source describes its examples and reads one by its index, so that a run can start at any step
without reading earlier examples. It does not shuffle (`order.py`), decode (`transforms.py`) or
batch (`pipeline.py`). For TFRecord files, a pass over the record headers creates the index.
"""

import hashlib
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import tensorflow as tf

from keras_vit.data import prepared
from keras_vit.data.contents import files_sha256
from keras_vit.data.fractals import find_systems, render
from keras_vit.photos import SUFFIXES, LeftOut, is_ignored, walk
from keras_vit.writing import group_by_reason


@dataclass(frozen=True, kw_only=True)
class Source:
    """A set of labelled images, accessible by index from 0 to `num_examples` - 1.

    Attributes:
        name: Name for messages and reports.
        class_names: Class names in the order of the labels.
        num_examples: Number of examples.
        read: Function from an index, a scalar int64 tensor, to (image, label). The image is a
            scalar string (an encoded file) or uint8 (H, W, 3), the label a scalar int64. It runs
            inside tf.data, in parallel.
        locate: Function from an index to a name for users: a path, or "name[index]".
        labels: (num_examples,) int64, or None if they are not known before reading.
        content: Function that returns a hash of the pixels of arrays, or of the sizes and times of
            files.
        left_out: Files of the folder that are not examples, with reasons.
        folder: Folder of the files that `locate` names, or "". It is no part of the hash, so a moved
            folder is the same data.
    """

    name: str
    class_names: tuple[str, ...]
    num_examples: int
    read: Callable[[tf.Tensor], tuple[tf.Tensor, tf.Tensor]]
    locate: Callable[[int], str]
    labels: np.ndarray | None = None
    content: Callable[[], str] = lambda: ""
    left_out: tuple[LeftOut, ...] = ()
    folder: str = ""

    def examples(self) -> tf.data.Dataset:
        """Returns (index, image, label) of each example, in the order of the index."""

        @tf.autograph.experimental.do_not_convert
        def read(index: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
            return index, *self.read(index)

        return tf.data.Dataset.range(self.num_examples).map(read)

    def sha256(self) -> str:
        """Returns a hash of the classes, and of the labels, names and contents of the examples.

        Runs, results and features record it, to detect other data. Names of files are relative to
        `folder`.
        """
        labels = np.full(self.num_examples, -1) if self.labels is None else self.labels
        digest = hashlib.sha256(repr(self.class_names).encode(errors="surrogateescape"))
        digest.update(labels.astype(np.int64).tobytes())
        prefix = os.path.join(self.folder, "") if self.folder else ""
        for index in range(self.num_examples):
            name = self.locate(index).removeprefix(prefix)
            digest.update(f"{name}\n".encode(errors="surrogateescape"))
        digest.update(self.content().encode())
        return digest.hexdigest()

    def without(self, indices: Iterable[int]) -> "Source":
        """Returns a source without the examples of these indices, in the same order.

        Raises:
            ValueError: If no example remains.
        """
        return self.subset(
            np.setdiff1d(np.arange(self.num_examples), np.fromiter(indices, np.int64))
        )

    def split(self, share: float, *, seed: int = 0) -> tuple["Source", "Source"]:
        """Returns a random part of the examples, and the remaining ones, both in index order.

        Args:
            share: Share of the first part, from 0 to 1.
            seed: Seed of the draw.

        Raises:
            ValueError: If one of the parts would be empty.

        Example:
            >>> [part.num_examples for part in digits("train").split(0.1)]
            [144, 1293]
        """
        first = np.random.default_rng(seed).permutation(self.num_examples)[
            : round(share * self.num_examples)
        ]
        return self.subset(np.sort(first)), self.without(first)

    def split_by_class(self, share: float, *, seed: int = 0) -> tuple["Source", "Source"]:
        """Returns a random part of each class, and the remaining examples, both in index order.

        Of each class with two or more examples, at least one is in each part. The only example of a
        class is in the second part.

        Args:
            share: Share of the first part, from 0 to 1.
            seed: Seed of the draw.

        Raises:
            ValueError: If the labels are not known, or no class has two examples.

        Example:
            >>> source = arrays(np.zeros((23, 8, 8), "uint8"), np.repeat([0, 1], [20, 3]))
            >>> [np.bincount(part.labels).tolist() for part in source.split_by_class(0.1)]
            [[2, 1], [18, 2]]
        """
        if self.labels is None:
            raise ValueError(
                f"The labels of {self.name} are not known before reading it. Use `split`."
            )
        if self.num_examples and np.bincount(self.labels).max() < 2:
            raise ValueError(
                f"No class of {self.name} has more than one image, so none can be held out for "
                "evaluation. Add images, or provide other images to evaluate on."
            )
        first = share_of_each_class(self.labels, share, seed=seed)
        return self.subset(first), self.without(first)

    def relabelled(self, labels: Sequence[int], class_names: Sequence[str]) -> "Source":
        """Returns the same examples with other classes.

        Args:
            labels: For each class of this source, its index in `class_names`.
            class_names: The classes of the new source.

        Example:
            >>> cats = arrays(np.zeros((2, 8, 8), "uint8"), np.array([1, 0]), ["cat", "lynx"])
            >>> cats.relabelled([2, 0], ["lynx", "dog", "cat"]).labels.tolist()
            [0, 2]
        """
        table = np.asarray(labels, np.int64)
        lookup = tf.constant(table)

        def read(index: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            image, label = self.read(index)
            # a label below 0 means that there is no label
            return image, tf.where(label < 0, label, lookup[tf.maximum(label, 0)])

        known = (
            None
            if self.labels is None
            else np.where(self.labels < 0, self.labels, table[self.labels])
        )
        return replace(self, class_names=tuple(class_names), read=read, labels=known)

    def subset(self, indices: Sequence[int] | np.ndarray) -> "Source":
        """Returns a source of the examples with these indices, in this order.

        Example:
            >>> digits("train").subset([5, 3]).num_examples
            2
        """
        kept = np.asarray(indices, np.int64)
        if not kept.size:
            raise ValueError(f"No example of {self.name} would remain.")
        if kept.min() < 0 or kept.max() >= self.num_examples:
            raise ValueError(
                f"{self.name} has the examples 0 to {self.num_examples - 1}. Received: "
                f"{kept.min()} to {kept.max()}."
            )
        table = tf.constant(kept)
        return replace(
            self,
            num_examples=len(kept),
            read=lambda index: self.read(table[index]),
            locate=lambda index: self.locate(int(kept[index])),
            labels=None if self.labels is None else self.labels[kept],
        )


def share_of_each_class(labels: np.ndarray, share: float, *, seed: int) -> np.ndarray:
    """Draws a share of the examples of each class, at least one and not all.

    Args:
        labels: (N,) integers from 0. From a class with a single example none is drawn.
        share: Share from 0 to 1.
        seed: Seed of the draw.

    Returns:
        Indices of the drawn examples, in ascending order.

    Example:
        >>> labels = np.repeat([0, 1], [20, 3])
        >>> np.bincount(labels[share_of_each_class(labels, 0.1, seed=0)]).tolist()
        [2, 1]
    """
    counts = np.bincount(labels)
    taken = np.clip(np.round(share * counts).astype(int), 1, np.maximum(counts, 2) - 1) * (
        counts > 1
    )
    order = np.random.default_rng(seed).permutation(len(labels))
    by_class = order[np.argsort(labels[order], kind="stable")]
    rank = np.arange(len(labels)) - np.repeat(np.cumsum(counts) - counts, counts)
    return np.sort(by_class[rank < np.repeat(taken, counts)])


def arrays(
    images: np.ndarray, labels: np.ndarray, class_names: Sequence[str] | None = None, name: str = ""
) -> Source:
    """Returns a source of NumPy arrays.

    Args:
        images: (N, H, W), (N, H, W, 1) or (N, H, W, 3) uint8.
        labels: (N,) integers from 0.
        class_names: Class names. Default: the numbers as strings.
        name: Name of the source. Default: "arrays".

    Example:
        >>> arrays(np.zeros((2, 8, 8), "uint8"), np.array([0, 1])).class_names
        ('0', '1')
    """
    images, labels = np.asarray(images), np.asarray(labels)
    if (
        images.dtype != np.uint8
        or images.ndim not in (3, 4)
        or (images.ndim == 4 and images.shape[-1] not in (1, 3))
    ):
        raise ValueError(
            "`images` must be uint8 of shape (N, H, W), (N, H, W, 1) or (N, H, W, 3). "
            f"Received: {images.dtype} of shape {images.shape}."
        )
    if (
        labels.shape != images.shape[:1]
        or not np.issubdtype(labels.dtype, np.integer)
        or not labels.size
    ):
        raise ValueError(
            f"`labels` must be {len(images)} integers, one per image. "
            f"Received: {labels.dtype} of shape {labels.shape}."
        )
    names = (
        tuple(class_names)
        if class_names is not None
        else tuple(map(str, range(int(labels.max()) + 1)))
    )
    if labels.min() < 0 or labels.max() >= len(names):
        raise ValueError(
            f"Labels must be 0 to {len(names) - 1}. Received: {labels.min()} to {labels.max()}."
        )
    images = images if images.ndim == 4 else images[..., None]
    all_images, all_labels = tf.constant(images), tf.constant(labels, tf.int64)

    def read(index: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        image = all_images[index]
        return (image if images.shape[-1] == 3 else tf.repeat(image, 3, axis=-1)), all_labels[index]

    name = name or "arrays"
    return Source(
        name=name,
        class_names=names,
        num_examples=len(images),
        read=read,
        locate=lambda index: f"{name}[{index}]",
        labels=labels.astype(np.int64),
        content=lambda: hashlib.sha256(np.ascontiguousarray(images).tobytes()).hexdigest(),
    )


def image_folder(path: str | os.PathLike, *, class_names: Sequence[str] | None = None) -> Source:
    """Returns a source of a folder with one folder of photos per class: `path/<class>/*.jpg`.

    Photos may be in nested folders at any depth. They are found by `keras_vit.photos.walk`, as in
    all commands. Classes and files are sorted by name, so the order is the same on all machines.
    Class folders without photos and photos outside the class folders are left out; `left_out` of
    the source lists them.

    Args:
        path: The folder of the classes.
        class_names: The classes of the source in this order, such as those of the training set. A
            class without a folder has no examples; photos of other classes are left out. Default:
            the names of the folders.

    Raises:
        ValueError: If the folder has no photos in class folders, or none of `class_names`. The
            message lists what was left out.
    """
    root = Path(path).expanduser()
    if not root.is_dir():
        raise ValueError(f"There is no folder {root}. Expected: {root}/<class>/*.jpg.")
    found, depth = walk(root), len(root.parts)
    of_class: dict[str, list[str]] = {}
    beside = []
    for photo in found.photos:
        if len(photo.parts) > depth + 1:
            of_class.setdefault(photo.parts[depth], []).append(str(photo))
        else:
            beside.append(LeftOut(photo, "a photo outside the class folders"))
    names = tuple(sorted(of_class) if class_names is None else class_names)
    unknown = sorted(of_class.keys() - set(names))
    left_out = [
        *found.left_out,
        *beside,
        *_list_empty_classes(
            root,
            [*of_class, *(left.path.name for left in found.left_out if left.path.parent == root)],
        ),
        *(
            LeftOut(root / name, f"not a class of the training set, {len(of_class[name]):,} photos")
            for name in unknown
        ),
    ]
    flat = [file for name in names for file in of_class.get(name, ())]
    if not flat:
        raise ValueError(
            _describe_missing_photos(root, () if class_names is None else names, left_out)
        )
    counts = [len(of_class.get(name, ())) for name in names]
    labels = np.repeat(np.arange(len(names), dtype=np.int64), counts)
    all_paths, all_labels = tf.constant([os.fsencode(file) for file in flat]), tf.constant(labels)
    return Source(
        name=str(path),
        class_names=names,
        num_examples=len(flat),
        read=lambda index: (tf.io.read_file(all_paths[index]), all_labels[index]),
        locate=flat.__getitem__,
        labels=labels,
        content=lambda: files_sha256(flat),
        left_out=tuple(left_out),
        folder=str(root),
    )


def photos(
    paths: Sequence[str | os.PathLike],
    *,
    name: str = "photos",
    left_out: Sequence[LeftOut] = (),
) -> Source:
    """Returns a source of photos without labels, in the given order.

    Args:
        paths: The files, of any format in `keras_vit.photos.FORMATS`.
        name: Name of the source.
        left_out: Files that were left out, with reasons.

    Example:
        >>> source = photos(["1.jpg", "2.jpg"])
        >>> source.num_examples, source.class_names, source.labels.tolist()
        (2, (), [-1, -1])
    """
    files = [os.fspath(path) for path in paths]
    all_paths = tf.constant([os.fsencode(file) for file in files], tf.string)
    return Source(
        name=name,
        class_names=(),
        num_examples=len(files),
        read=lambda index: (tf.io.read_file(all_paths[index]), tf.constant(-1, tf.int64)),
        locate=files.__getitem__,
        labels=np.full(len(files), -1, np.int64),
        content=lambda: files_sha256(files),
        left_out=tuple(left_out),
    )


def _list_empty_classes(root: Path, known: Iterable[str]) -> list[LeftOut]:
    """Returns the class folders without photos, except those that are listed already."""
    names = {
        entry.name for entry in root.iterdir() if entry.is_dir() and not is_ignored(entry.name)
    } - set(known)
    return [LeftOut(root / name, "a class folder without photos") for name in sorted(names)]


def _describe_missing_photos(
    root: Path, expected: Sequence[str], left_out: Sequence[LeftOut]
) -> str:
    classes = f" of the classes {', '.join(expected[:10])}" if expected else ""
    return (
        f"{root} has no photos ({', '.join(SUFFIXES)}){classes}. Expected: {root}/<class>/*.jpg, "
        f"one folder for each class. {group_by_reason(left_out)}".rstrip()
    )


def digits(split: str) -> Source:
    """Returns scikit-learn's handwritten digits: "train" is the first 1437, "test" the last 360.

    The images have 8 x 8 pixels. They are part of scikit-learn, so nothing is downloaded. The test
    digits were written by other people than the training digits.

    Example:
        >>> digits("test").num_examples
        360
    """
    from sklearn.datasets import load_digits

    parts = {"train": slice(None, 1437), "test": slice(1437, None)}
    if split not in parts:
        raise ValueError(f'`split` must be "train" or "test". Received: {split!r}.')
    images, labels = load_digits(return_X_y=True)
    pixels = np.round(images.reshape(-1, 8, 8) * (255 / 16)).astype(np.uint8)
    return arrays(pixels[parts[split]], labels[parts[split]], name=f"digits {split}")


def fractals(
    num_classes: int, *, images_per_class: int = 1000, image_size: int = 64, seed: int = 0
) -> Source:
    """Returns a source of fractals, which are drawn when they are read.

    See `keras_vit.data.fractals`.

    Args:
        num_classes: Number of classes, with one iterated function system each.
        images_per_class: Instances of each system in an epoch.
        image_size: Side in pixels.
        seed: Seed of the systems and instances.

    Example:
        >>> fractals(10, images_per_class=100).num_examples
        1000
    """
    if images_per_class < 1:
        raise ValueError(f"`images_per_class` must be at least 1. Received: {images_per_class}.")
    systems = find_systems(num_classes, seed)
    name = f"fractals({num_classes} classes, seed {seed})"
    return Source(
        name=name,
        class_names=tuple(f"system {number}" for number in range(num_classes)),
        num_examples=num_classes * images_per_class,
        read=lambda index: render(systems, index, seed=seed, image_size=image_size),
        locate=lambda index: f"{name}[{index}]",
        content=lambda: f"{images_per_class} of {image_size} pixels",
    )


def tfds(
    name: str,
    split: str,
    *,
    data_dir: str | os.PathLike | None = None,
    label: Callable[[Mapping[str, tf.Tensor]], tf.Tensor] | None = None,
    class_names: Sequence[str] | None = None,
) -> Source:
    """Returns a source of TensorFlow Datasets, such as `tfds("cifar10", "train[:98%]")`.

    The data set is downloaded and prepared at the first use. Its files must be TFRecords on a local
    disk, because they are read in random order.

    Args:
        name: Name, with configuration and version if necessary:
            "imagenet_v2/matched-frequency:3.0.0".
        split: Slices and sums in the syntax of TensorFlow Datasets: "train[:800]+validation[:200]".
        data_dir: Default: TFDS_DATA_DIR, or ~/tensorflow_datasets.
        label: Function from the decoded example without its images to a scalar integer, which runs
            inside tf.data. Default: the feature `label`.
        class_names: Class names of the labels. Default: those of the feature `label`.

    Raises:
        ValueError: If there is no such data set or split, if it cannot be prepared, or if its
            examples have no image or label.
    """
    builder, images = prepared.prepare(name, data_dir), prepared.library().features.Image
    features = builder.info.features
    needed = ("image", "label") if label is None or class_names is None else ("image",)
    missing = [key for key in needed if key not in features]
    if missing:
        raise ValueError(
            f"{name} has no {' and no '.join(missing)}. Features: {', '.join(features)}."
        )
    if class_names is None:
        class_names = features["label"].names or map(str, range(features["label"].num_classes))
    records = prepared.records(builder, split)
    encoded = prepared.library().decode.SkipDecoding()
    decoders = {key: encoded for key, feature in features.items() if isinstance(feature, images)}
    read_record = records.reader()

    def read(index: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        example = features.deserialize_example(read_record(index), decoders=decoders)
        facts = {key: value for key, value in example.items() if key not in decoders}
        return example["image"], tf.cast(
            facts["label"] if label is None else label(facts), tf.int64
        )

    return Source(
        name=f"{name} {split}",
        class_names=tuple(class_names),
        num_examples=len(records),
        read=read,
        locate=records.locate,
        content=lambda: files_sha256(records.files),
        folder=str(builder.data_dir),
    )
