"""The table of VTAB's 19 tasks: data sets of TensorFlow Datasets, splits of 1000 examples, labels.

VTAB-1k selects hyperparameters on 800 training and 200 validation examples, trains on these 1000
and evaluates on the whole test set. The examples are the first 800 of the training set and the
first 200 of the validation set, in the order in which TensorFlow Datasets shuffles them when it
writes its files, which is the same on all machines. If a data set has no validation or test set,
VTAB splits one off by percentage. VTAB rounds down and TensorFlow Datasets rounds to nearest; for
the sizes of these data sets, both give the same number.

Versions contain stars, so that any matching version on the disk is used; a name without a version
would mean only the newest. The versions are those of VTAB's code, with three exceptions that can no
longer be prepared: for Pets 3, DMLab 2.0.0 and KITTI 3.1.0, later versions are accepted too.

Preparation requires opencv-python for Sun397, Retinopathy and KITTI, and scipy for Flowers102 and
SVHN.

Source: arXiv:1910.04867; google-research/task_adaptation, data/, one file for each data set; flips
and crops: arXiv:1912.11370 appendix F; titles and order: arXiv:2010.11929 table 9.
"""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from operator import itemgetter
from types import MappingProxyType

import numpy as np
import tensorflow as tf

from keras_vit.data import prepared, sources
from keras_vit.data.sources import Source
from keras_vit.data.transforms import decode

NUM_TRAIN, NUM_VALIDATION = 800, 200

_Example = Mapping[str, tf.Tensor]


@dataclass(frozen=True, kw_only=True)
class VtabTask:
    """One of the 19 tasks.

    Attributes:
        name: Name, such as "clevr_count".
        title: Name in the paper, such as "Clevr-Count".
        group: "natural", "specialized" or "structured".
        dataset: Name in TensorFlow Datasets, with configuration and versions.
        train: Split of the 800 training examples.
        validation: Split whose first 200 examples are the validation examples.
        test: Split for the evaluation.
        num_classes: Number of classes.
        label: Function from the decoded example, without its images, to the class, a scalar int64.
            It runs inside tf.data.
        class_names: Names for a computed label; empty if the data set has names.
        flip, crop: Whether training may flip images, and whether it may crop them at random.
        manual: Files that must be downloaded manually, and their folder; "" if there are none.
        pixel_scale: Factor that scales the pixels to 0 to 255.
    """

    name: str
    title: str
    group: str
    dataset: str
    train: str = f"train[:{NUM_TRAIN}]"
    validation: str = "validation"
    test: str = "test"
    num_classes: int
    label: Callable[[_Example], tf.Tensor] = itemgetter("label")
    class_names: tuple[str, ...] = ()
    flip: bool = True
    crop: bool = True
    manual: str = ""
    pixel_scale: int = 1


def _count_objects(example: _Example) -> tf.Tensor:
    return tf.size(example["objects"]["size"], tf.int64) - 3


def _bin_nearest_object(example: _Example) -> tf.Tensor:
    """Returns the distance of the nearest object, in six classes."""
    # The third pixel coordinate is the distance from the camera.
    return _count_edges_below(
        tf.reduce_min(example["objects"]["pixel_coords"][:, 2]), (8.0, 8.5, 9.0, 9.5, 10.0)
    )


def _bin_nearest_vehicle(example: _Example) -> tf.Tensor:
    """Returns the distance of the nearest vehicle, in four classes."""
    # Types 0 to 2 are car, van and truck. A location is right, down and forward from the camera, in
    # metres.
    is_vehicle = example["objects"]["type"] < 3
    distances = tf.where(is_vehicle, example["objects"]["location"][:, 2], np.inf)
    return _count_edges_below(tf.reduce_min(distances), (8.0, 20.0, 999.0))


def _count_edges_below(value: tf.Tensor, edges: tuple[float, ...]) -> tf.Tensor:
    """Counts the edges below the value."""
    return tf.reduce_sum(tf.cast(tf.constant(edges) < value, tf.int64))


def _group_into_16(key: str, num_values: int) -> Callable[[_Example], tf.Tensor]:
    """Groups adjacent values into 16 classes: 32 values in pairs, 40 in threes and twos in turn."""
    return lambda example: example[key] * 16 // num_values


_natural = partial(VtabTask, group="natural")
_specialized = partial(VtabTask, group="specialized")
_structured = partial(VtabTask, group="structured")
# data/clevr.py. The test set has no objects, so VTAB evaluates on the validation set.
_clevr = partial(
    _structured, dataset="clevr:3.*.*", validation="train[90%:]", test="validation", crop=False
)
# data/dsprites.py. Pixels are 0 and 1.
_dsprites = partial(
    _structured,
    dataset="dsprites:2.*.*",
    validation="train[80%:90%]",
    test="train[90%:]",
    num_classes=16,
    class_names=tuple(map(str, range(16))),
    flip=False,
    pixel_scale=255,
)
# data/smallnorb.py. The first image of each pair.
_smallnorb = partial(
    _structured, dataset="smallnorb:2.*.*", validation="test[:50%]", test="test[50%:]"
)

_ALL = (
    # data/caltech.py. The background is a class too. The 30 training images of a class that
    # TensorFlow Datasets selects depend on the order in which the file system lists them.
    _natural(
        name="caltech101",
        title="Caltech101",
        dataset="caltech101:3.*.*",
        validation="train[90%:]",
        num_classes=102,
    ),
    # data/cifar.py
    _natural(
        name="cifar100",
        title="CIFAR-100",
        dataset="cifar100:3.*.*",
        validation="train[90%:]",
        num_classes=100,
    ),
    # data/dtd.py
    _natural(name="dtd", title="DTD", dataset="dtd:3.*.*", num_classes=47),
    # data/oxford_flowers102.py
    _natural(
        name="flowers102", title="Flowers102", dataset="oxford_flowers102:2.*.*", num_classes=102
    ),
    # data/oxford_iiit_pet.py
    _natural(
        name="pets",
        title="Pets",
        dataset="oxford_iiit_pet:4.*.*",
        validation="train[80%:]",
        num_classes=37,
    ),
    # data/sun397.py
    _natural(name="sun397", title="Sun397", dataset="sun397/tfds:4.*.*", num_classes=397),
    # data/svhn.py
    _natural(
        name="svhn",
        title="SVHN",
        dataset="svhn_cropped:3.*.*",
        validation="train[90%:]",
        num_classes=10,
    ),
    # data/patch_camelyon.py
    _specialized(
        name="patch_camelyon", title="Camelyon", dataset="patch_camelyon:2.*.*", num_classes=2
    ),
    # data/eurosat.py
    _specialized(
        name="eurosat",
        title="EuroSAT",
        dataset="eurosat/rgb:2.*.*",
        validation="train[60%:80%]",
        test="train[80%:]",
        num_classes=10,
    ),
    # data/resisc45.py
    _specialized(
        name="resisc45",
        title="Resisc45",
        dataset="resisc45:3.*.*",
        validation="train[60%:80%]",
        test="train[80%:]",
        num_classes=45,
        manual="Download the .rar file from https://1drv.ms/u/s!AmgKYzARBl5ca3HNaHIlzp_IXjs, and unpack it in "
        "downloads/manual of the folder of all data sets: NWPU-RESISC45/<class>/*.jpg.",
    ),
    # data/diabetic_retinopathy.py
    _specialized(
        name="diabetic_retinopathy",
        title="Retinopathy",
        dataset="diabetic_retinopathy_detection/btgraham-300:3.*.*",
        num_classes=5,
        manual="Download https://www.kaggle.com/c/diabetic-retinopathy-detection/data, and unpack it in "
        "downloads/manual of the folder of all data sets: the images in train/, test/ and sample/, "
        "and trainLabels.csv.",
    ),
    _clevr(
        name="clevr_count",
        title="Clevr-Count",
        num_classes=8,
        label=_count_objects,
        class_names=tuple(f"{number} objects" for number in range(3, 11)),
    ),
    _clevr(
        name="clevr_distance",
        title="Clevr-Dist",
        num_classes=6,
        label=_bin_nearest_object,
        class_names=("up to 8", "8 to 8.5", "8.5 to 9", "9 to 9.5", "9.5 to 10", "beyond 10"),
    ),
    # data/dmlab.py
    _structured(name="dmlab", title="DMLab", dataset="dmlab:2.*.*", num_classes=6, crop=False),
    _dsprites(
        name="dsprites_location",
        title="dSpr-Loc",
        label=_group_into_16("label_x_position", 32),
        crop=False,
    ),
    _dsprites(
        name="dsprites_orientation", title="dSpr-Ori", label=_group_into_16("label_orientation", 40)
    ),
    # data/kitti.py
    _structured(
        name="kitti_distance",
        title="KITTI-Dist",
        dataset="kitti:3.*.*",
        num_classes=4,
        label=_bin_nearest_vehicle,
        class_names=("up to 8 m", "8 to 20 m", "beyond 20 m", "no vehicle"),
        crop=False,
    ),
    _smallnorb(
        name="smallnorb_azimuth",
        title="sNORB-Azim",
        num_classes=18,
        label=itemgetter("label_azimuth"),
        class_names=tuple(f"{degrees}°" for degrees in range(0, 360, 20)),
        flip=False,
    ),
    _smallnorb(
        name="smallnorb_elevation",
        title="sNORB-Elev",
        num_classes=9,
        label=itemgetter("label_elevation"),
        class_names=tuple(f"{degrees}°" for degrees in range(30, 75, 5)),
    ),
)
TASKS: Mapping[str, VtabTask] = MappingProxyType({task.name: task for task in _ALL})


@dataclass(frozen=True, kw_only=True)
class TaskSources:
    """The examples of a task.

    Attributes:
        train: The 800 training examples.
        validation: The 200 validation examples.
        train_and_validation: These 1000, in this order.
        test: The whole test set.
    """

    train: Source
    validation: Source
    train_and_validation: Source
    test: Source


def task_sources(task: VtabTask, data_dir: str | os.PathLike | None = None) -> TaskSources:
    """Opens the examples of a task; downloads and prepares the data set if necessary.

    Args:
        task: One of `TASKS`.
        data_dir: Folder of all data sets. Default: TFDS_DATA_DIR, or ~/tensorflow_datasets.

    Raises:
        ValueError: If the data set is missing and cannot be prepared, or is not that of the task.
    """
    try:
        prepared.prepare(task.dataset, data_dir)
    except ValueError as error:
        by_hand = f" This data set needs a manual download. {task.manual}" if task.manual else ""
        raise ValueError(f"The data of {task.title} are missing. {error}{by_hand}") from error
    both = _open_source(task, f"{task.train}+{task.validation}", data_dir)
    return TaskSources(
        train=_open_source(task, task.train, data_dir),
        validation=_open_source(task, task.validation, data_dir).subset(np.arange(NUM_VALIDATION)),
        train_and_validation=both.subset(np.arange(NUM_TRAIN + NUM_VALIDATION)),
        test=_open_source(task, task.test, data_dir),
    )


def _open_source(task: VtabTask, split: str, data_dir: str | os.PathLike | None) -> Source:
    names = task.class_names or None
    source = sources.tfds(
        task.dataset, split, data_dir=data_dir, label=task.label, class_names=names
    )
    if len(source.class_names) != task.num_classes:
        raise ValueError(
            f"{task.title} has {task.num_classes} classes, but {source.name} has "
            f"{len(source.class_names)}. It may be another data set of the same name: remove it, "
            "and prepare the data set again."
        )
    return (
        source
        if task.pixel_scale == 1
        else replace(source, read=_scale_pixels(source.read, task.pixel_scale))
    )


def _scale_pixels(read: Callable, factor: int) -> Callable:
    def read_scaled(index: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        image, label = read(index)
        return decode(image, tf.constant([0, 0])) * tf.constant(factor, tf.uint8), label

    return read_scaled


def is_prepared(task: VtabTask, data_dir: str | os.PathLike | None = None) -> bool:
    """Returns whether the data set of a task is on the disk, without preparing or downloading it.

    Example:
        >>> is_prepared(TASKS["clevr_count"], data_dir="an empty folder")
        False
    """
    return prepared.is_prepared(task.dataset, data_dir)
