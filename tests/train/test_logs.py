"""What was written comes back: bit for bit, once, after every kind of end."""

import math
import os
import re
import sys
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
import warm

from keras_vit.train.logs import MetricsLog, read_metrics

event_accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")


def write_steps(workdir: Path, steps, *, resume_step: int = 0, value: float = 0.0) -> None:
    with MetricsLog(workdir, resume_step=resume_step) as log:
        for step in steps:
            log.write(step, {"train/loss": value + step, "validation/loss": 2 * value + step})


def steps_of(workdir: Path) -> list[int]:
    return [step for step, _ in read_metrics(workdir)["train/loss"]]


def events_of(workdir: Path, tag: str = "train/loss") -> list[tuple[int, float]]:
    """As TensorBoard reads them, without its own forgetting."""
    events = event_accumulator.EventAccumulator(
        str(workdir / "tensorboard"), purge_orphaned_data=False
    )
    events.Reload()
    if tag not in events.Tags()["tensors"]:
        return []
    return [
        (event.step, float(tf.make_ndarray(event.tensor_proto))) for event in events.Tensors(tag)
    ]


def test_the_file_is_one_header_and_one_row_per_value(tmp_path: Path):
    with MetricsLog(tmp_path, resume_step=0) as log:
        log.write(10, {"train/loss": 0.5, "train/accuracy": 1})
        log.write(20, {"train/loss": 0.25})
    expected = "step,metric,value\n10,train/loss,0.5\n10,train/accuracy,1.0\n20,train/loss,0.25\n"
    assert (tmp_path / "metrics.csv").read_text() == expected


FULL_DISK = """
import resource, signal, sys
from keras_vit.train.logs import MetricsLog, read_metrics
log = MetricsLog(sys.argv[1], resume_step=0)
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]), resource.RLIM_INFINITY))
try:
    for step in range(1, 1000):
        log.write(step, {"train/loss": 1 / step, "train/" + "a" * int(sys.argv[3]): 0.0})
except OSError as error:
    print(f"OSError: {error}")
log.close()
print(len(read_metrics(sys.argv[1])["train/loss"]), step)
"""


# TensorBoard's file is full first, or metrics.csv
@pytest.mark.parametrize("name_length", [1, 500])
def test_a_full_disk_is_one_sentence_and_rows_before_it_are_whole(tmp_path: Path, name_length: int):
    """A limit on the size of files fails as a full disk does: in the system call, after part of the
    bytes.
    """
    limit = 4000 if name_length == 1 else 3000
    command = [sys.executable, "-c", FULL_DISK, str(tmp_path), str(limit), str(name_length)]
    done = warm.run(
        command, env={**os.environ, "KERAS_BACKEND": "tensorflow"}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-2000:]
    failure, counts = done.stdout.splitlines()
    assert failure.startswith("OSError: ") and failure.endswith("File too large"), failure
    rows, step = map(int, counts.split())
    assert rows in (step - 1, step) and "Traceback" not in done.stderr
    assert (tmp_path / "metrics.csv").read_bytes().endswith(b"\n")


def test_of_a_row_that_is_written_in_part_nothing_remains(tmp_path: Path):
    log = MetricsLog(tmp_path, resume_step=0)
    log.write(1, {"loss": 2.0})
    path, rows = tmp_path / "metrics.csv", log._rows
    before = path.read_bytes()

    class Short:
        name, fileno, close = rows.name, rows.fileno, rows.close

        def write(self, content: bytes) -> int:
            return rows.write(content[: len(content) // 2])

    log._rows = Short()
    with pytest.raises(OSError, match="No space left"):
        log.write(2, {"loss": 1.0})
    log.close()
    assert path.read_bytes() == before


def test_the_folder_is_made(tmp_path: Path):
    write_steps(tmp_path / "runs" / "first", [1])
    assert steps_of(tmp_path / "runs" / "first") == [1]


def test_floats_come_back_bit_for_bit(tmp_path: Path):
    values = [
        0.1,
        1 / 3,
        -0.0,
        5e-324,
        1.7976931348623157e308,
        1e-5,
        2**53 + 1.0,
        math.inf,
        -math.inf,
    ]
    values += [float(value) for value in np.random.default_rng(0).normal(size=50)]
    with MetricsLog(tmp_path, resume_step=0) as log:
        for step, value in enumerate(values):
            log.write(step, {"x": value})
    found = [value for _, value in read_metrics(tmp_path)["x"]]
    assert np.array(found).tobytes() == np.array(values).tobytes()


def test_nan_is_written_and_read_as_nan(tmp_path: Path):
    with MetricsLog(tmp_path, resume_step=0) as log:
        log.write(1, {"x": float("nan")})
    assert (tmp_path / "metrics.csv").read_text().endswith("1,x,nan\n")
    assert math.isnan(read_metrics(tmp_path)["x"][0][1])
    assert math.isnan(events_of(tmp_path, "x")[0][1])


@pytest.mark.parametrize("number", [np.float32(0.1), np.array(0.1, "float32"), tf.constant(0.1)])
def test_scalars_of_any_kind_are_numbers(tmp_path: Path, number):
    with MetricsLog(tmp_path, resume_step=0) as log:
        log.write(np.int64(3), {"x": number})
    assert read_metrics(tmp_path) == {"x": [(3, 0.10000000149011612)]}


def test_a_row_is_on_disk_before_the_log_is_closed(tmp_path: Path):
    with MetricsLog(tmp_path, resume_step=0) as log:
        log.write(10, {"train/loss": 0.5})
        assert read_metrics(tmp_path) == {"train/loss": [(10, 0.5)]}
        assert events_of(tmp_path) == [(10, 0.5)]


def test_a_kill_at_any_byte_loses_at_most_the_line_it_hit(tmp_path: Path):
    whole = (
        "step,metric,value\n5,a/loss,1.25\n5,a/größe,2.5\n10,a/loss,nan\n10,a/größe,inf\n".encode()
    )
    for length in range(len(whole) + 1):
        (tmp_path / "metrics.csv").write_bytes(whole[:length])
        rows = sum(len(curve) for curve in read_metrics(tmp_path).values())
        assert rows == max(0, whole[:length].count(b"\n") - 1)


def test_going_on_after_a_kill_in_the_middle_of_a_line(tmp_path: Path):
    write_steps(tmp_path, [10, 20])
    with open(tmp_path / "metrics.csv", "ab") as file:
        file.write(b"20,another,0.1234\n20,train/acc")
    write_steps(tmp_path, [30], resume_step=20)
    assert steps_of(tmp_path) == [10, 20, 30]
    assert read_metrics(tmp_path)["another"] == [(20, 0.1234)]
    assert (tmp_path / "metrics.csv").read_text().count("step,metric,value") == 1


def test_a_rerun_leaves_each_step_once(tmp_path: Path):
    write_steps(tmp_path, [0, 10, 20, 30, 40])
    write_steps(tmp_path, [30, 40, 50], resume_step=20, value=0.5)
    expected = [(0, 0.0), (10, 10.0), (20, 20.0), (30, 30.5), (40, 40.5), (50, 50.5)]
    assert read_metrics(tmp_path)["train/loss"] == expected
    assert sorted(events_of(tmp_path)) == expected
    assert sorted(events_of(tmp_path, "validation/loss"))[-1] == (50, 51.0)


def test_forgetting_twice_forgets_no_more(tmp_path: Path):
    write_steps(tmp_path, [10, 20, 30])
    for _ in range(2):
        write_steps(tmp_path, [], resume_step=20)
    assert steps_of(tmp_path) == [10, 20]
    assert [step for step, _ in events_of(tmp_path)] == [10, 20]


def test_a_new_run_forgets_everything(tmp_path: Path):
    write_steps(tmp_path, [0, 10])
    write_steps(tmp_path, [0], value=7.0)
    assert read_metrics(tmp_path)["train/loss"] == [(0, 7.0)]
    assert events_of(tmp_path) == [(0, 7.0)]


def test_the_times_of_earlier_events_are_kept(tmp_path: Path):
    def times(path: Path) -> list[float]:
        records = tf.data.TFRecordDataset(str(path)).as_numpy_iterator()
        return [tf.compat.v1.Event.FromString(record).wall_time for record in records]

    write_steps(tmp_path, [10])
    [path] = (tmp_path / "tensorboard").glob("*.tfevents.*")
    before = times(path)
    MetricsLog(tmp_path, resume_step=10).close()
    assert times(path) == before


def test_events_cut_by_a_kill_are_read_up_to_the_cut(tmp_path: Path):
    write_steps(tmp_path, [10, 20, 30])
    [path] = (tmp_path / "tensorboard").glob("*.tfevents.*")
    # within the last record, the validation loss of step 30
    os.truncate(path, path.stat().st_size - 5)
    write_steps(tmp_path, [40], resume_step=30)
    assert [step for step, _ in sorted(events_of(tmp_path))] == [10, 20, 30, 40]
    assert [step for step, _ in sorted(events_of(tmp_path, "validation/loss"))] == [10, 20, 40]


def test_only_the_record_and_the_events_remain(tmp_path: Path):
    write_steps(tmp_path, [10])
    write_steps(tmp_path, [20], resume_step=10)
    assert {path.name for path in tmp_path.iterdir()} == {"metrics.csv", "tensorboard"}
    assert all(".tfevents." in path.name for path in (tmp_path / "tensorboard").iterdir())


def test_the_later_of_two_values_counts(tmp_path: Path):
    (tmp_path / "metrics.csv").write_text("step,metric,value\n5,x,1.0\n10,x,2.0\n5,x,3.0\n")
    assert read_metrics(tmp_path) == {"x": [(5, 3.0), (10, 2.0)]}


@pytest.mark.parametrize("name", ["top-1, top-5", "loss\n", "loss\r"])
def test_a_name_that_would_break_the_rows_is_refused(tmp_path: Path, name):
    with MetricsLog(tmp_path, resume_step=0) as log:
        with pytest.raises(ValueError, match=re.escape(f"Received: [{name!r}]")):
            log.write(1, {"train/loss": 0.5, name: 0.5})
    assert read_metrics(tmp_path) == {}


@pytest.mark.parametrize("line", ["5,x", "5,x,1.0,2.0", "five,x,1.0", "5,x,high", ""])
def test_a_line_that_is_no_row_is_named(tmp_path: Path, line):
    (tmp_path / "metrics.csv").write_text(f"step,metric,value\n1,x,1.0\n{line}\n2,x,1.0\n")
    with pytest.raises(ValueError, match=f"Line 3 of .*metrics.csv is not.*{line!r}"):
        read_metrics(tmp_path)


def test_the_table_of_somebody_else_is_not_touched(tmp_path: Path):
    (tmp_path / "metrics.csv").write_text("epoch,accuracy\n1,0.5\n")
    with pytest.raises(ValueError, match="choose another folder"):
        MetricsLog(tmp_path, resume_step=0)
    assert (tmp_path / "metrics.csv").read_text() == "epoch,accuracy\n1,0.5\n"


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path):
    (tmp_path / "file").write_text("")
    with pytest.raises(
        OSError,
        match=f"Cannot write to {tmp_path}/file/run: Not a directory. Choose another folder",
    ):
        MetricsLog(tmp_path / "file" / "run", resume_step=0)


def test_nothing_measured_is_an_empty_table(tmp_path: Path):
    MetricsLog(tmp_path, resume_step=0).close()
    assert read_metrics(tmp_path) == {}
    with pytest.raises(FileNotFoundError, match="metrics.csv"):
        read_metrics(tmp_path / "elsewhere")


def test_closing_twice_does_no_harm(tmp_path: Path):
    log = MetricsLog(tmp_path, resume_step=0)
    log.close()
    log.close()
    with pytest.raises(ValueError, match="closed file"):
        log.write(1, {"x": 1.0})


def test_an_evaluation_that_the_checkpoint_does_not_have_is_forgotten(tmp_path: Path):
    """The run was stopped before it could save; it evaluates again."""
    with MetricsLog(tmp_path, resume_step=0) as log:
        for step in (10, 20):
            log.write(step, {"train/loss": 1.0})
            log.write(step, {"validation/loss": 2.0, "preview/error": 3.0})
    before = read_metrics(tmp_path)
    MetricsLog(tmp_path, resume_step=20).close()
    assert read_metrics(tmp_path) == before
    MetricsLog(tmp_path, resume_step=20, keep_evaluation=False).close()
    assert read_metrics(tmp_path) == {
        "train/loss": [(10, 1.0), (20, 1.0)],
        "validation/loss": [(10, 2.0)],
        "preview/error": [(10, 3.0)],
    }
    assert events_of(tmp_path) == [(10, 1.0), (20, 1.0)]
    assert events_of(tmp_path, "validation/loss") == [(10, 2.0)]
