"""What a run measured: rows of `metrics.csv`, and the same numbers for TensorBoard.

The rows are the record that reports and plots are made from. They survive a kill at any moment, and
a run that goes on from a checkpoint first forgets what it measured after it: whatever happened,
each step is there once. Bars and lines on the terminal are the business of `progress.py`.
"""

import errno
import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import tensorflow as tf

from keras_vit.writing import write_atomically

_HEADER = "step,metric,value\n"


_SCALAR = tf.compat.v1.SummaryMetadata(data_class=1)  # DATA_CLASS_SCALAR
_SCALAR.plugin_data.plugin_name = "scalars"


class MetricsLog:
    """Writes the metrics of a run into its folder, as `metrics.csv` and below `tensorboard/`.

    One process writes: with several workers, the chief. The folder is one of this machine's file
    system. A TensorBoard that is open while a run goes on from a checkpoint shows what was
    forgotten until it is restarted.

    Args:
        workdir: Folder of the run; made if it is absent.
        resume_step: Step of the checkpoint the run goes on from: what is in the folder for later
            steps is removed. 0 for a new run: everything is removed, what was measured before the
            first step too.

    Raises:
        OSError: If the folder cannot be written.
        ValueError: If its `metrics.csv` is something else.

    Example:
        >>> with MetricsLog("run", resume_step=0) as log:
        ...     log.write(10, {"train/loss": 6.908, "train/learning_rate": 0.001})
        >>> read_metrics("run")
        {'train/loss': [(10, 6.908)], 'train/learning_rate': [(10, 0.001)]}
    """

    def __init__(self, workdir: str | os.PathLike, *, resume_step: int):
        workdir = Path(workdir)
        try:
            (workdir / "tensorboard").mkdir(parents=True, exist_ok=True)
            last_step = resume_step or -1
            _forget_rows(workdir / "metrics.csv", last_step)
            _forget_events(workdir / "tensorboard", last_step)
            # Without a buffer: what a full disk refuses would be written when the file is closed.
            self._rows = open(workdir / "metrics.csv", "ab", buffering=0)
            self._events = tf.summary.create_file_writer(str(workdir / "tensorboard"))
        except (OSError, tf.errors.OpError) as error:
            reason = (
                _extract_reason(error)
                if isinstance(error, tf.errors.OpError)
                else error.strerror or str(error)
            )
            message = (
                f"Cannot write to {workdir.resolve()}: {reason}. Choose another folder for the "
                "run, or make room and run the same command: earlier rows and checkpoints are kept."
            )
            raise OSError(message) from error

    def write(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Adds what was measured at one step; when this returns, a kill of the process cannot take
        it away.

        Args:
            step: Updates done so far.
            metrics: Name to number: a float, or a scalar array or tensor. NaN and infinities are
                written as such.

        Raises:
            ValueError: If a name contains a comma or a line break. Nothing is written.
            OSError: If the disk is full or not writable. Rows of earlier steps are whole.
        """
        values = {name: float(value) for name, value in metrics.items()}
        if wrong := [name for name in values if any(character in name for character in ",\r\n")]:
            raise ValueError(
                f"Names of metrics must not contain commas or line breaks. Received: {wrong}."
            )
        self._add_rows(
            "".join(f"{int(step)},{name},{value!r}\n" for name, value in values.items()).encode()
        )
        try:
            self._add_events(step, values)
        except tf.errors.OpError as error:
            raise OSError(f"TensorBoard's file: {_extract_reason(error)}") from error

    def _add_rows(self, rows: bytes) -> None:
        size = os.fstat(self._rows.fileno()).st_size
        try:
            if self._rows.write(rows) < len(rows):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), self._rows.name)
        except OSError:
            os.ftruncate(self._rows.fileno(), size)
            raise

    def _add_events(self, step: int, values: Mapping[str, float]) -> None:
        with self._events.as_default(step=int(step)):  # flushes at its end
            for name, value in values.items():
                # `tf.summary.scalar` needs the package TensorBoard; this does not. What is too
                # large becomes infinite.
                number = tf.cast(tf.constant(value, tf.float64), tf.float32)
                tf.summary.write(name, number, metadata=_SCALAR)

    def close(self) -> None:
        """Closes both files; once is enough, and twice does no harm."""
        self._rows.close()
        with suppress(tf.errors.OpError):  # what could not be written was told when it was
            self._events.close()

    def __enter__(self) -> "MetricsLog":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def read_metrics(workdir: str | os.PathLike) -> dict[str, list[tuple[int, float]]]:
    """Reads `metrics.csv` back: for each metric, its (step, value) in the order they were written.

    Also while the run is going on, or after it was killed in the middle of a line. Floats come back
    bit for bit. Of two values for one step, the later is returned.

    Raises:
        FileNotFoundError: If there is no `metrics.csv` in the folder.
        ValueError: If a line is not of the form `step,metric,value`.

    Example:
        >>> with MetricsLog("run", resume_step=0) as log:
        ...     log.write(10, {"train/loss": float("nan")})
        >>> read_metrics("run")["train/loss"]
        [(10, nan)]
    """
    curves: dict[str, dict[int, float]] = {}
    for _, step, name, value in _parse_rows(Path(workdir) / "metrics.csv"):
        curves.setdefault(name, {})[step] = value
    return {name: list(curve.items()) for name, curve in curves.items()}


def _extract_reason(error: tf.errors.OpError) -> str:
    """What the system said, out of the lines that TensorFlow makes of it."""
    return error.message.splitlines()[0].rpartition("; ")[2]


def _parse_rows(path: Path) -> Iterator[tuple[str, int, str, float]]:
    """Each whole line after the header, and what it says."""
    # A kill leaves at most one line unfinished, the last: it ends without a line break, or within a
    # character.
    text = path.read_bytes().rpartition(b"\n")[0].decode("utf-8", errors="replace")
    for number, line in enumerate(text.split("\n") if text else [], 1):
        if number == 1 and line + "\n" == _HEADER:
            continue
        try:
            step, name, value = line.split(",")
            row = line + "\n", int(step), name, float(value)
        except ValueError as error:
            message = (
                f"Line {number} of {path} is not `step,metric,value`: {line!r}. If the file is "
                "damaged, remove the line; if it is something else, choose another folder for the "
                "run."
            )
            raise ValueError(message) from error
        yield row


def _forget_rows(path: Path, last_step: int) -> None:
    """Leaves the header and the rows up to a step, in a file that is the old or the new one at any
    moment.
    """
    kept = (
        [line for line, step, *_ in _parse_rows(path) if step <= last_step] if path.exists() else []
    )
    with write_atomically(path) as partial:
        partial.write_text(_HEADER + "".join(kept), encoding="utf-8")


def _forget_events(folder: Path, last_step: int) -> None:
    """The same for TensorBoard's files, one by one; the times of what is left stay as they were."""
    for path in sorted(folder.glob("*.tfevents.*")):
        partial = folder / "partial"  # TensorBoard would read whatever has "tfevents" in its name
        with tf.io.TFRecordWriter(str(partial)) as writer:
            for record in _read_whole_records(path):
                event = tf.compat.v1.Event.FromString(record)
                if event.step <= last_step or not event.HasField("summary"):
                    writer.write(record)
        os.replace(partial, path)


def _read_whole_records(path: Path) -> Iterator[bytes]:
    try:
        yield from tf.data.TFRecordDataset(str(path)).as_numpy_iterator()
    except tf.errors.DataLossError:
        return  # a kill left the last record unfinished, and there is nothing behind it
