"""The inputs of a run: sources, transforms and batches."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from keras_vit.data import duplicates, sources, transforms
from keras_vit.data.pipeline import Share, evaluation_batches, padded_rows, training_batches
from keras_vit.data.randaugment import rand_augment
from keras_vit.data.reading import Unreadable, forget_repaired
from keras_vit.data.sources import Source
from keras_vit.data.transforms import Transform
from keras_vit.devices import Devices
from keras_vit.train.config import DataConfig, RunConfig
from keras_vit.writing import write_text


@dataclass(frozen=True, kw_only=True)
class Inputs:
    """The training and validation data of a run.

    Attributes:
        training, validation: The sources; `validation` is None if there is no validation.
        settings: Settings of the run.
        image_size: Side of the square images, in pixels.
        devices: The devices, which determine the share of each batch that this process reads.
        noise_length: Number of random numbers that the model takes beside each image.
        unreadable, unreadable_validation: The images of each source that could not be read.
    """

    training: Source
    validation: Source | None
    settings: RunConfig
    image_size: int
    devices: Devices
    unreadable: Unreadable
    unreadable_validation: Unreadable | None
    noise_length: int = 0

    def training_batches(self, start_step: int, stamp: Callable[[], int]) -> Any:
        """See `keras_vit.data.pipeline.training_batches`."""
        settings = self.settings
        return training_batches(
            self.training,
            training_transforms(settings.data, self.image_size),
            batch_size=settings.batch_size,
            seed=settings.seed,
            share=_make_share(settings.batch_size, settings.accumulation_steps, self.devices),
            start_step=start_step,
            total_steps=settings.loop.total_steps,
            mixup_alpha=settings.data.mixup_alpha,
            noise_length=self.noise_length,
            unreadable=self.unreadable,
            stamp=stamp,
        )

    def validation_batches(self) -> Any:
        """See `keras_vit.data.pipeline.evaluation_batches`."""
        batch_size = self.settings.eval_batch_size
        return evaluation_batches(
            self.validation,
            evaluation_transforms(self.settings.data, self.image_size),
            batch_size=batch_size,
            share=_make_share(min(batch_size, self.validation.num_examples), 1, self.devices),
            noise_length=self.noise_length,
            unreadable=self.unreadable_validation,
        )

    def preview(self, count: int = 8) -> np.ndarray:
        """Returns evenly spaced validation images, or training images without a validation set. See
        `preview`.
        """
        return preview(self.validation or self.training, self.settings.data, self.image_size, count)

    def unreadable_places(self) -> list[str]:
        """Returns the names of the images that could not be read."""
        both = (self.unreadable, self.unreadable_validation)
        return [
            place for collector in both if collector is not None for place in collector.recorded()
        ]


def make_inputs(
    training: Source,
    validation: Source | None,
    settings: RunConfig,
    image_size: int,
    workdir: Path,
    devices: Devices,
    *,
    noise_length: int = 0,
) -> Inputs:
    """Returns the inputs of a run. Unreadable images are recorded in the folder of the run."""
    if devices.is_chief:
        _forget_earlier(workdir)

    def make_collector(source: Source, name: str) -> Unreadable:
        return Unreadable(source, strict=settings.data.strict, record=workdir / name)

    return Inputs(
        training=training,
        validation=validation,
        settings=settings,
        image_size=image_size,
        devices=devices,
        unreadable=make_collector(training, _TRAINING_RECORD),
        unreadable_validation=None
        if validation is None
        else make_collector(validation, _VALIDATION_RECORD),
        noise_length=noise_length,
    )


_TRAINING_RECORD, _VALIDATION_RECORD = "unreadable_train.txt", "unreadable_test.txt"


def _forget_earlier(workdir: Path) -> None:
    """Removes images from the records of an earlier start that it no longer leaves out."""
    # Without a checkpoint, training starts again with all images. After one, the record is kept for
    # the report, since earlier steps lacked the images.
    if not any((workdir / "checkpoints").glob("[0-9]*")):
        (workdir / _TRAINING_RECORD).unlink(missing_ok=True)
    forget_repaired(workdir / _VALIDATION_RECORD)  # each evaluation reads all images


def make_sources(data: DataConfig, seed: int) -> tuple[Source, Source | None]:
    """Returns the training set, and the validation set or None. Both have the same classes."""
    if data.kind == "given":
        raise ValueError(
            "`kind='given'` records that sources were passed in Python. A recipe cannot use it: "
            "choose another kind."
        )
    if data.held_out:
        validation, training = _make_training_source(data, seed).split(data.held_out)
    else:
        training = _make_training_source(data, seed)
        validation = (
            _make_validation_source(data, seed, training.class_names) if data.test else None
        )
    if data.train_share < 1:
        training, _ = training.split(data.train_share, seed=seed)
    return training, validation


def _make_training_source(data: DataConfig, seed: int) -> Source:
    if data.kind == "image_folder":
        return sources.image_folder(Path(data.name).expanduser() / data.train)
    if data.kind == "tfds":
        return sources.tfds(data.name, data.train)
    if data.kind == "digits":
        return sources.digits("train")
    whole = _make_fractals(data, seed)
    return whole.subset(np.arange(_count_training_fractals(data, whole))) if data.test else whole


def _make_validation_source(data: DataConfig, seed: int, class_names: tuple[str, ...]) -> Source:
    if data.kind == "image_folder":
        folder = Path(data.name).expanduser() / data.test
        if not folder.is_dir():
            raise ValueError(
                f"There is no folder {folder} for the validation. Name another with "
                "--config.run.data.test=FOLDER, or disable validation: --config.run.data.test="
            )
        return sources.image_folder(folder, class_names=class_names)
    if data.kind == "tfds":
        return sources.tfds(data.name, data.test)
    if data.kind == "digits":
        return sources.digits("test")
    whole = _make_fractals(data, seed)
    return whole.subset(np.arange(_count_training_fractals(data, whole), whole.num_examples))


def _make_fractals(data: DataConfig, seed: int) -> Source:
    return sources.fractals(
        data.num_classes,
        images_per_class=data.images_per_class,
        image_size=data.image_size,
        seed=seed,
    )


def _count_training_fractals(data: DataConfig, whole: Source) -> int:
    """Returns the number of training images; the other instances are for validation.

    Of each class a tenth of the instances is for validation, but at least 1 and at most 10.
    """
    return whole.num_examples - data.num_classes * max(1, min(10, data.images_per_class // 10))


def training_transforms(data: DataConfig, image_size: int) -> list[Transform]:
    """Returns crop, flip and RandAugment. Their results are uint8; the device scales them."""
    chosen = transforms.train_crop(data.crop, image_size, smallest_area=data.crop_area)
    chosen += [transforms.flip_left_right] if data.flip else []
    chosen += [transforms.to_uint8]
    if data.rand_augment_ops:
        chosen.append(rand_augment(data.rand_augment_ops, data.rand_augment_magnitude))
    return chosen


def evaluation_transforms(data: DataConfig, image_size: int) -> list[Transform]:
    """Returns the transforms of validation.

    Pixels are not rounded to integers, so that `evaluate` and `predict` compute the same scores.
    """
    return [*transforms.eval_crop(data.eval_crop, image_size), transforms.scale_to(-1, 1)]


def preview(source: Source, data: DataConfig, image_size: int, count: int = 8) -> np.ndarray:
    """Returns evenly spaced images of a source, (count, image_size, image_size, 3) uint8, without
    those that cannot be read.
    """
    chosen = source.subset(np.linspace(0, source.num_examples - 1, count).round())
    steps = [*transforms.eval_crop(data.eval_crop, image_size), transforms.to_uint8]
    batches = evaluation_batches(chosen, steps, batch_size=count)
    images, _, weights = (part.numpy() for part in next(iter(batches)))
    return images[weights > 0]


def drop_duplicates(
    training: Source, validation: Source, workdir: Path, devices: Devices
) -> Source:
    """Returns the training set without images that are also in the validation set.

    The removed images are listed in `duplicates.md` in the folder of the run.
    """
    report = duplicates.find_duplicates(training, validation, progress=devices.is_chief)
    if devices.is_chief:
        write_text(workdir / "duplicates.md", report.markdown())
    return duplicates.drop_duplicates(training, report) if report.pairs else training


def _make_share(batch_size: int, accumulation_steps: int, devices: Devices) -> Share:
    return Share(
        rows=padded_rows(batch_size, devices.num_replicas * accumulation_steps),
        num_workers=devices.num_workers,
        worker_index=devices.worker_index,
        num_parts=devices.local_parts,
    )
