"""The metrics of a run: rows of `metrics.csv`, and the same numbers for TensorBoard.

Reports and plots read `metrics.csv`. Rows survive a kill of the process at any moment. A run that
resumes from a checkpoint first removes the rows after it, so that each step occurs once.
`progress.py` prints to the terminal.
"""

import errno
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import tensorflow as tf

from keras_vit.writing import write_atomically

_HEADER = "step,metric,value\n"
_OF_TRAINING = "train/"  # the names of other metrics are those of evaluations


_SCALAR = tf.compat.v1.SummaryMetadata(data_class=1)  # DATA_CLASS_SCALAR
_SCALAR.plugin_data.plugin_name = "scalars"


class MetricsLog:
    """Writes the metrics of a run to `metrics.csv` and to event files in `tensorboard/`.

    Only one process writes: with several workers, the chief. The folder must be on a local or
    mounted file system. If TensorBoard is open while a run resumes, restart it: it still shows the
    removed values.

    Args:
        workdir: Folder of the run. It is created if it is absent.
        resume_step: Step of the checkpoint that the run resumes from. Metrics of later steps are
            removed. 0 for a new run: all metrics are removed, also those of step 0.
        keep_evaluation: Whether the checkpoint has the metrics of its evaluation. If not, the run
            evaluates again, and those of `resume_step` are removed too.

    Raises:
        OSError: If the folder cannot be written.
        ValueError: If its `metrics.csv` does not contain metrics.

    Example:
        >>> with MetricsLog("run", resume_step=0) as log:
        ...     log.write(10, {"train/loss": 6.908, "train/learning_rate": 0.001})
        >>> read_metrics("run")
        {'train/loss': [(10, 6.908)], 'train/learning_rate': [(10, 0.001)]}
    """

    def __init__(
        self, workdir: str | os.PathLike, *, resume_step: int, keep_evaluation: bool = True
    ):
        workdir = Path(workdir)
        try:
            (workdir / "tensorboard").mkdir(parents=True, exist_ok=True)
            last_step = resume_step or -1

            def is_kept(step: int, name: str) -> bool:
                is_of_training = name.startswith(_OF_TRAINING)
                return step < last_step or (
                    step == last_step and (keep_evaluation or is_of_training)
                )

            _forget_rows(workdir / "metrics.csv", is_kept)
            _forget_events(workdir / "tensorboard", is_kept)
            # Unbuffered: otherwise rows that a full disk refused would be written at `close`.
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
                "run, or make room and rerun the same command. Earlier rows and checkpoints are "
                "kept."
            )
            raise OSError(message) from error

    def write(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Adds the metrics of a step. After it returns, they survive a kill of the process.

        Args:
            step: Number of updates so far.
            metrics: Numbers by name: floats, or scalar arrays or tensors. NaN and infinity are
                written as such.

        Raises:
            ValueError: If a name contains a comma or a line break. Nothing is written.
            OSError: If the disk is full or not writable. Rows of earlier steps are kept.
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
            raise OSError(
                f"The event file of TensorBoard cannot be written: {_extract_reason(error)}"
            ) from error

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
                # `tf.summary.scalar` needs the package tensorboard; `tf.summary.write` does not.
                # Values too large for float32 become infinite.
                number = tf.cast(tf.constant(value, tf.float64), tf.float32)
                tf.summary.write(name, number, metadata=_SCALAR)

    def close(self) -> None:
        """Closes both files. A second call has no effect."""
        self._rows.close()
        with suppress(tf.errors.OpError):  # `write` has already raised this error
            self._events.close()

    def __enter__(self) -> "MetricsLog":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def read_metrics(workdir: str | os.PathLike) -> dict[str, list[tuple[int, float]]]:
    """Reads `metrics.csv`: for each metric, (step, value) pairs in the order of writing.

    The run may be in progress, or may have been killed in the middle of a line. Floats are restored
    exactly. If a step has two values, the later is returned.

    Raises:
        FileNotFoundError: If the folder has no `metrics.csv`.
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
    """Extracts the message of the operating system from TensorFlow's error message."""
    return error.message.splitlines()[0].rpartition("; ")[2]


def _parse_rows(path: Path) -> Iterator[tuple[str, int, str, float]]:
    """Yields (line, step, name, value) for each complete line after the header."""
    # If the process was killed, the last line may be incomplete: without a line break, or cut
    # within a character.
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
                "damaged, remove the line. If it is not the metrics of a run, choose another "
                "folder for the run."
            )
            raise ValueError(message) from error
        yield row


def _forget_rows(path: Path, is_kept: Callable[[int, str], bool]) -> None:
    """Keeps some rows, by step and name. The file is replaced atomically."""
    kept = (
        [line for line, step, name, _ in _parse_rows(path) if is_kept(step, name)]
        if path.exists()
        else []
    )
    with write_atomically(path) as partial:
        partial.write_text(_HEADER + "".join(kept), encoding="utf-8")


def _forget_events(folder: Path, is_kept: Callable[[int, str], bool]) -> None:
    """Keeps some events in TensorBoard's files, by step and name; they keep their times."""
    for path in sorted(folder.glob("*.tfevents.*")):
        partial = folder / "partial"  # no "tfevents" in its name: TensorBoard must not read it
        with tf.io.TFRecordWriter(str(partial)) as writer:
            for record in _read_whole_records(path):
                event = tf.compat.v1.Event.FromString(record)
                names = [value.tag for value in event.summary.value]  # one for each event
                if all(is_kept(event.step, name) for name in names):
                    writer.write(record)
        os.replace(partial, path)


def _read_whole_records(path: Path) -> Iterator[bytes]:
    try:
        yield from tf.data.TFRecordDataset(str(path)).as_numpy_iterator()
    except tf.errors.DataLossError:
        return  # the process was killed while it wrote the last record
