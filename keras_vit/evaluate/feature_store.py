"""A folder of features that may be larger than memory, with extraction that can be resumed.

A finished folder contains `features.npy`, `labels.npy` and `indices.npy` for `numpy.load`, and
`features.json` with their description. Until then rows are appended, and `progress.json` records
the number of saved rows.
"""

import io
import json
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from keras_vit.writing import write_array, write_atomically, write_text

_SECONDS_BETWEEN_SAVES = 10
# Fields that earlier versions did not record. They are compared with records that have them.
_ADDED = ("config_sha256",)


def read(folder: Path) -> dict[str, Any]:
    """Returns the fields of `keras_vit.evaluate.features.Features` from a finished folder."""
    try:
        record = json.loads((folder / "features.json").read_text(encoding="utf-8"))
        return {
            "values": np.load(folder / "features.npy", mmap_mode="r"),
            "labels": np.load(folder / "labels.npy"),
            "indices": np.load(folder / "indices.npy"),
            "class_names": tuple(record["class_names"]),
            "name": record["source"],
        }
    except FileNotFoundError as error:
        begun = (folder / "progress.json").exists()
        hint = (
            "The extraction is not finished: rerun it to resume."
            if begun
            else "Create them with `extract`."
        )
        raise ValueError(f"{folder} contains no features. {hint}") from error


class FeatureStore:
    """A folder to which features are appended.

    Args:
        folder: The folder; created if missing.
        record: Description that distinguishes these features from others.
        is_chief: Whether this worker writes.
    """

    def __init__(self, folder: Path, record: dict[str, Any], *, is_chief: bool):
        self.folder, self.is_chief = folder, is_chief
        folder.mkdir(parents=True, exist_ok=True)
        self.is_finished = (folder / "features.json").exists()
        if self.is_finished and is_chief:
            # The process that finished the folder may have been killed before it removed them.
            self._remove_unfinished()
        state = self._read("features.json" if self.is_finished else "progress.json")
        self.rows, self.next = state.get("rows", 0), state.get("next", 0)
        recorded = state.get("record", record)
        self.record = recorded  # features of an earlier version do not gain a field
        other = [
            name
            for name in recorded | record
            if recorded.get(name) != record.get(name) and (name in recorded or name not in _ADDED)
        ]
        if other:
            there, here = (
                {name: values.get(name) for name in other} for values in (recorded, record)
            )
            raise ValueError(
                f"{folder} contains other features: there {there}, here {here}. Choose another "
                f"folder, or remove this one."
            )

    def _read(self, name: str) -> dict[str, Any]:
        path = self.folder / name
        return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}

    def __enter__(self) -> "FeatureStore":
        self._saved, self._files = time.monotonic(), None
        if self.is_chief and self.rows:
            self._truncate_unsaved()
        return self

    def append(self, values: np.ndarray, labels: np.ndarray, indices: np.ndarray) -> None:
        """Appends the rows of the next images, and saves them every 10 seconds."""
        if not self.is_chief or not len(indices):
            return
        if self._files is None:
            self._files = self._open_files(values.shape[1:])
        self._files[0].write(np.ascontiguousarray(values, "<f4").tobytes())
        self._files[1].write(np.stack([indices, labels], axis=1).astype("<i8").tobytes())
        self.rows += len(indices)
        self.next = int(indices[-1]) + 1
        if time.monotonic() - self._saved > _SECONDS_BETWEEN_SAVES:
            self._save()

    def _truncate_unsaved(self) -> None:
        """Removes bytes that were written after the last save."""
        values, places = self._paths
        shape = _read_shape(values) if values.exists() else ()
        sizes = {
            values: len(_make_header((0, *shape))) + self.rows * 4 * int(np.prod(shape)),
            places: 16 * self.rows,
        }
        for path, size in sizes.items():
            if not path.exists() or path.stat().st_size < size:
                raise ValueError(
                    f"{path} is missing or was truncated. Remove {self.folder} and extract the "
                    f"features again."
                )
            os.truncate(path, size)

    @property
    def _paths(self) -> tuple[Path, Path]:
        return self.folder / "features.npy", self.folder / "places.partial"

    def _open_files(self, shape: tuple[int, ...]) -> tuple[BinaryIO, BinaryIO]:
        mode = "ab" if self.rows else "wb"
        values, places = (open(path, mode) for path in self._paths)
        if not self.rows:
            values.write(_make_header((0, *shape)))
        return values, places

    def _save(self) -> None:
        for file in self._files:
            file.flush()
            os.fsync(file.fileno())
        state = {"record": self.record, "rows": self.rows, "next": self.next}
        write_text(self.folder / "progress.json", json.dumps(state, indent=1) + "\n")
        self._saved = time.monotonic()

    def __exit__(self, *_: Any) -> None:
        if self._files is None:
            return
        try:
            self._save()
        finally:
            for file in self._files:
                file.close()

    def finish(self, source: str, class_names: Sequence[str]) -> None:
        """Converts the collected rows to NumPy files."""
        if not self.is_chief:
            return
        if not self.rows:
            raise ValueError(f"No image of {source} could be read.")
        values, places = self._paths
        for name, column in zip(
            ("indices", "labels"), np.fromfile(places, "<i8").reshape(-1, 2).T, strict=True
        ):
            with write_atomically(self.folder / f"{name}.npy") as partial:
                write_array(partial, column.astype(np.int64))
        with open(values, "r+b") as file:
            file.write(_make_header((self.rows, *_read_shape(values))))
        described = {
            "record": self.record,
            "rows": self.rows,
            "source": source,
            "class_names": class_names,
        }
        write_text(self.folder / "features.json", json.dumps(described, indent=1) + "\n")
        self._remove_unfinished()

    def _remove_unfinished(self) -> None:
        for path in (self._paths[1], self.folder / "progress.json"):
            path.unlink(missing_ok=True)


def _make_header(shape: tuple[int, ...]) -> bytes:
    """Returns the header of an .npy file."""
    # NumPy pads the header, so its length does not depend on the number of rows.
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        file, {"descr": "<f4", "fortran_order": False, "shape": shape}
    )
    return file.getvalue()


def _read_shape(path: Path) -> tuple[int, ...]:
    with open(path, "rb") as file:
        np.lib.format.read_magic(file)
        return np.lib.format.read_array_header_1_0(file)[0][1:]
