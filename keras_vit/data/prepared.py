"""Data sets of TensorFlow Datasets on disk: their preparation, and access to records by index.

`sources.tfds` reads examples from the records.
"""

import os
import socket
import struct
import urllib.parse
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass

import tensorflow as tf

from keras_vit.extras import install
from keras_vit.suggestions import did_you_mean


def library():
    """Returns the module tensorflow_datasets.

    Raises:
        ValueError: If it is not installed.

    Example:
        >>> library().__name__
        'tensorflow_datasets'
    """
    try:
        import tensorflow_datasets
    except ImportError as error:
        needs = f"This source needs TensorFlow Datasets: {install('train')}. Image folders do not."
        raise ValueError(needs) from error
    return tensorflow_datasets


def is_prepared(name: str, data_dir: str | os.PathLike | None = None) -> bool:
    """Returns whether a data set is on disk. It neither prepares the data set nor uses the network.

    Args:
        name: As in `sources.tfds`. "clevr" is the version that the library would prepare;
            "clevr:3.*.*" is the highest version 3 on disk.
        data_dir: Default: TFDS_DATA_DIR, or ~/tensorflow_datasets.

    Raises:
        ValueError: If there is no such data set.

    Example:
        >>> is_prepared("mnist:3.*.*", data_dir="an empty folder")
        False
    """
    return _make_builder(name, data_dir).data_path.exists()


def prepare(name: str, data_dir: str | os.PathLike | None = None):
    """Returns the builder of a data set. Downloads and prepares it as TFRecords if necessary.

    Args:
        name, data_dir: As in `is_prepared`.

    Raises:
        ValueError: If there is no such data set, if it cannot be prepared, or if it is on disk in
            another format.
    """
    builder = _make_builder(name, data_dir)
    if not builder.data_path.exists():
        try:
            _check_online(builder)
            builder.download_and_prepare(file_format="tfrecord")
        # The network, the disk and the data set raise many types, and the advice is the same.
        except Exception as error:
            raise ValueError(
                f"{name} is not in {builder.data_dir} and cannot be prepared here: "
                f"{type(error).__name__}: {str(error)[:300]}. Prepare it on a machine with a "
                "network, and copy the folder."
            ) from error
    if builder.info.file_format is not None and builder.info.file_format.value != "tfrecord":
        raise ValueError(
            f"{name} was prepared as {builder.info.file_format.value} in {builder.data_dir}. "
            "Expected TFRecords. Prepare it again: "
            'tfds.builder(...).download_and_prepare(file_format="tfrecord").'
        )
    return builder


def _make_builder(name: str, data_dir: str | os.PathLike | None):
    tfds = library()
    try:
        return tfds.builder(name, data_dir=data_dir, try_gcs=False)
    except tfds.core.registered.DatasetNotFoundError as error:
        suggestion = did_you_mean(name.split(":")[0].split("/")[0], tfds.list_builders())
        raise ValueError(
            f"TensorFlow Datasets has no {name!r}.{suggestion} To read your own image folder, use "
            "`image_folder`."
        ) from error
    # AssertionError is raised for an unknown version.
    except (ValueError, AssertionError) as error:
        raise ValueError(f"TensorFlow Datasets has no {name!r}: {str(error)[:300]}") from error


def _check_online(builder) -> None:
    """Raises OSError immediately if offline. TensorFlow Datasets would retry for minutes."""
    # A proxy resolves host names itself. The key "no", from NO_PROXY, is not a proxy.
    if urllib.request.getproxies().keys() - {"no"}:
        return
    hosts = {urllib.parse.urlsplit(url).hostname for url in builder.url_infos or ()}
    for host in sorted(host for host in hosts if host):
        socket.getaddrinfo(host, 443)


@dataclass(frozen=True)
class Records:
    """The records of a split, accessible by index.

    Attributes:
        files: Paths of the TFRecord files.
        places: For each record, the index of its file, and its start and length in bytes.
    """

    files: tuple[str, ...]
    places: tuple[tuple[int, int, int], ...]

    def __len__(self) -> int:
        return len(self.places)

    def locate(self, index: int) -> str:
        number, start, _ = self.places[index]
        return f"{self.files[number]} at byte {start}"

    def reader(self) -> Callable[[tf.Tensor], tf.Tensor]:
        """Returns a function for tf.data from an index, a scalar int64, to a record, a scalar
        string.
        """
        numbers, starts, lengths = (
            tf.constant(column, tf.int64) for column in zip(*self.places, strict=True)
        )
        paths, sizes = (
            tf.constant(self.files),
            tf.constant([os.path.getsize(file) for file in self.files], tf.int64),
        )

        def read(index: tf.Tensor) -> tf.Tensor:
            start, length, number = starts[index], lengths[index], numbers[index]
            return tf.data.FixedLengthRecordDataset(
                paths[number],
                record_bytes=length,
                header_bytes=start,
                footer_bytes=sizes[number] - start - length,
            ).get_single_element()

        return read


def records(builder, split: str) -> Records:
    """Finds the records of a split by a pass over the record headers in its files.

    Args:
        builder: From `prepare`.
        split: As in `sources.tfds`.

    Raises:
        ValueError: If there is no such split, if it is empty, or if a file is truncated.
    """
    name, splits = builder.info.full_name, builder.info.splits
    try:
        instructions = splits[split].file_instructions
    except (KeyError, ValueError, AssertionError) as error:
        sizes = ", ".join(f"{part} ({splits[part].num_examples})" for part in splits)
        raise ValueError(f"{name} has no split {split!r}. Splits: {sizes}.") from error
    places = []
    for number, instruction in enumerate(instructions):
        end = None if instruction.take < 0 else instruction.skip + instruction.take
        places += [
            (number, *place) for place in _find_places(instruction.filename)[instruction.skip : end]
        ]
    if not places:
        raise ValueError(f"{name} {split} has no examples.")
    return Records(tuple(instruction.filename for instruction in instructions), tuple(places))


def _find_places(path: str) -> list[tuple[int, int]]:
    """Returns (start, length) in bytes of the data of each record in a TFRecord file.

    A record consists of length (8 bytes), checksum (4), data, checksum (4).
    """
    places, position, size = [], 0, os.path.getsize(path)
    with open(path, "rb") as file:
        while position < size:
            file.seek(position)
            header = file.read(8)
            length = struct.unpack("<Q", header)[0] if len(header) == 8 else size
            if position + 16 + length > size:
                raise ValueError(f"{path} is truncated at byte {size}. Prepare the data set again.")
            places.append((position + 12, length))
            position += 16 + length
    return places
