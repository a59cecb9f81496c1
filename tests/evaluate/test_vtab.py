"""VTAB's runner: which images are learned from, what is done again after a stop, and what the
report claims.

Nothing is trained here: `adapt` and `measure` are stand-ins that take notes.
    `tests/test_vtab_script.py` trains.
"""

import csv
import json
import sys
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")
pytest.importorskip("tensorflow_datasets")
pytest.importorskip("matplotlib")

import keras  # noqa: E402
from matplotlib.figure import Figure  # noqa: E402

from keras_vit.data import sources  # noqa: E402
from keras_vit.evaluate import vtab_report  # noqa: E402
from keras_vit.evaluate.vtab import Job, jobs, vtab  # noqa: E402
from keras_vit.evaluate.vtab_report import Result, means, summary, write_report, write_result  # noqa: E402
from keras_vit.evaluate.vtab_tasks import TASKS, TaskSources  # noqa: E402

pytestmark = pytest.mark.tensorflow

# Table 9 of arXiv:2010.11929, ViT-H/14 on JFT-300M. The means of the groups are not printed there.
VIT_H = dict(
    zip(
        TASKS,
        [95.3, 85.5, 75.2, 99.7, 97.2, 65.0, 88.9, 83.3, 96.7, 91.4, 76.6]
        + [91.7, 63.8, 53.1, 79.4, 63.3, 84.5, 33.2, 51.2],
        strict=True,
    )
)
PLAN = {"steps": "2500", "learning rate": "0.01"}


def touch(folder: Path, **counts: int) -> None:
    """Empty files: to be listed, not to be read."""
    for name, count in counts.items():
        (folder / name).mkdir(parents=True)
        for number in range(count):
            (folder / name / f"{number:04}.png").touch()


def places(source: sources.Source) -> list[str]:
    return [source.locate(index) for index in range(source.num_examples)]


# Which tasks


def test_tasks_are_named_by_themselves_by_groups_and_all_together(tmp_path):
    def names(*words: str) -> list[str]:
        return [job.name for job in jobs(words, tmp_path)]

    assert names("all") == list(TASKS)
    assert [len(names(group)) for group in ("natural", "specialized", "structured")] == [7, 4, 8]
    assert names("dmlab", "specialized", "cifar100", "dmlab") == [
        "cifar100",
        *("patch_camelyon", "eurosat", "resisc45", "diabetic_retinopathy"),
        "dmlab",
    ]
    location = jobs(["dsprites_location"], tmp_path)[0]
    assert (location.title, location.group, location.flip, location.crop) == (
        "dSpr-Loc",
        "structured",
        False,
        False,
    )


def test_an_unknown_task_is_answered_with_its_neighbours(tmp_path):
    with pytest.raises(
        ValueError,
        match=r"no task 'clevr_cuont'. Did you mean clevr_count[^\n]*\nThere is no task 'Natur'",
    ):
        jobs(["clevr_cuont", "pets", "Natur"], tmp_path)
    with pytest.raises(
        ValueError, match="Available: caltech101, .*structured, all, and folder:PATH"
    ):
        jobs(["qqq"], tmp_path)
    with pytest.raises(ValueError, match="No task was requested"):
        jobs([], tmp_path)


def test_of_a_large_folder_a_thousand_images_are_learned_from(tmp_path):
    touch(tmp_path / "my birds" / "train", finch=700, wren=500)
    touch(tmp_path / "my birds" / "test", finch=3, wren=4)
    (job,) = jobs([f"folder:{tmp_path}/my birds"])
    assert (job.name, job.title, job.group, job.flip, job.crop) == (
        "own_my_birds",
        "my birds",
        "own",
        True,
        True,
    )
    opened = job.sources()
    parts = [opened.train, opened.validation, opened.train_and_validation, opened.test]
    assert [part.num_examples for part in parts] == [800, 200, 1000, 7]
    train, validation, both, test = map(places, parts)
    assert sorted(train + validation) == sorted(both) and len(set(both)) == 1000
    assert all("/test/" in place for place in test) and not any("/test/" in place for place in both)
    finches = sum("finch" in place for place in both) / 1000
    assert 0.52 < finches < 0.65  # 7 of 12, drawn at random
    (again,) = jobs([f"folder:{tmp_path}/my birds"])
    assert places(again.sources().train) == train and again.data == job.data
    touch(tmp_path / "my birds" / "test", owl=0)
    (tmp_path / "my birds" / "train" / "wren" / "new.png").touch()
    (tmp_path / "my birds" / "test" / "owl").rmdir()
    assert jobs([f"folder:{tmp_path}/my birds"])[0].data != job.data


def test_of_a_small_folder_all_is_learned_from_but_a_fifth_of_each_class(tmp_path):
    touch(tmp_path / "pets", cat=20, dog=10)
    (job,) = jobs([f"folder:{tmp_path}/pets"])
    opened = job.sources()
    assert np.bincount(opened.test.labels).tolist() == [4, 2]
    assert np.bincount(opened.train_and_validation.labels).tolist() == [16, 8]
    assert (opened.train.num_examples, opened.validation.num_examples) == (19, 5)
    assert not set(places(opened.test)) & set(places(opened.train_and_validation))


def test_two_folders_of_one_name_are_refused(tmp_path):
    touch(tmp_path / "a" / "pets", cat=2, dog=2)
    touch(tmp_path / "b" / "pets", cat=2, dog=2)
    with pytest.raises(ValueError, match="have the same name: .*a/pets.*b/pets"):
        jobs([f"folder:{tmp_path}/a/pets", f"folder:{tmp_path}/b/pets"])
    assert len(jobs([f"folder:{tmp_path}/a/pets", f"folder:{tmp_path}/a/../a/pets"])) == 1


# One after the other


class Notes:
    """Stand-ins for training and measuring, and what they were asked. A model is only a name
    here.
    """

    def __init__(self, stop_at: str = "", accuracy: float = 0.5):
        self.adapted: list[tuple[str, int, Path]] = []
        self.measured: list[tuple[str, int]] = []
        self.stop_at, self.value = stop_at, accuracy

    def adapt(self, job: Job, train: sources.Source, folder: Path) -> keras.Model:
        self.adapted.append((job.name, train.num_examples, folder))
        assert folder.is_dir()
        if job.name == self.stop_at:
            raise InterruptedError("stopped")
        return job.name

    def measure(self, model: keras.Model, source: sources.Source) -> dict[str, float]:
        self.measured.append((model, source.num_examples))
        return {"top1": self.value, "loss": 1.5, "images": source.num_examples, "unreadable": 0}


def job_of(name: str, **changes) -> Job:
    """One of VTAB's tasks, with few images that cannot be read: 8 and 2, and 5 to test on."""

    def unread(count: int) -> sources.Source:
        def read(index: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            pytest.fail("The runner itself reads no image.")

        return replace(
            sources.arrays(np.zeros((count, 4, 4), np.uint8), np.zeros(count, int)), read=read
        )

    opened = TaskSources(
        train=unread(8), validation=unread(2), train_and_validation=unread(10), test=unread(5)
    )
    task = TASKS[name]
    fields = {
        "data": f"{name} 1.0",
        "flip": True,
        "crop": True,
        "sources": lambda: opened,
        "is_on_disk": True,
    }
    return Job(
        **{
            "name": name,
            "title": task.title,
            "group": task.group,
            **fields,
            "by_hand": "",
            **changes,
        }
    )


def run(notes: Notes, workdir: Path, *tasks: Job, plan: dict = PLAN, **options) -> dict[str, float]:
    return vtab(
        tasks, notes.adapt, workdir, title="ViT", plan=plan, measure=notes.measure, **options
    )


def stamps(workdir: Path) -> dict[str, tuple[bytes, int]]:
    return {
        path.parent.name: (path.read_bytes(), path.stat().st_mtime_ns)
        for path in workdir.glob("*/result.json")
    }


def test_the_thousand_are_learned_from_and_the_test_set_is_measured_once(tmp_path):
    notes = Notes(accuracy=0.25)
    found = run(notes, tmp_path, job_of("pets"), job_of("clevr_count"))
    assert notes.adapted == [
        ("pets", 10, tmp_path / "pets"),
        ("clevr_count", 10, tmp_path / "clevr_count"),
    ]
    assert notes.measured == [("pets", 5), ("clevr_count", 5)]
    assert found == {"vtab/pets": 0.25, "vtab/clevr_count": 0.25}
    result = json.loads((tmp_path / "pets" / "result.json").read_text())
    assert result["numbers"] == {"top1": 0.25, "loss": 1.5, "images": 5, "unreadable": 0}
    assert (result["learned_from"], result["measured_on"]) == (10, "test")


def test_to_choose_a_setting_the_test_set_stays_closed(tmp_path):
    notes, job = Notes(), job_of("pets")
    opened = job.sources()
    sealed = replace(job, sources=lambda: replace(opened, test=None))
    run(notes, tmp_path, sealed, tune=True)
    assert notes.adapted[0][1] == 8 and notes.measured == [("pets", 2)]
    assert "evaluated on 200 validation images" in (tmp_path / "vtab.md").read_text()
    with pytest.raises(
        ValueError, match="contains another VTAB run:\n  measured on: there validation, here test"
    ):
        run(notes, tmp_path, job)


def test_a_finished_task_is_not_done_again(tmp_path):
    tasks = [job_of(name) for name in ("pets", "clevr_count", "dmlab")]
    stopped = Notes(stop_at="clevr_count", accuracy=0.75)
    with pytest.raises(InterruptedError):
        run(stopped, tmp_path, *tasks)
    before = stamps(tmp_path)
    assert list(before) == ["pets"] and "1 of the 19" in (tmp_path / "vtab.md").read_text()
    gone_on = Notes(accuracy=0.25)
    found = run(gone_on, tmp_path, *tasks)
    assert [name for name, _, _ in gone_on.adapted] == ["clevr_count", "dmlab"]
    assert found == {"vtab/pets": 0.75, "vtab/clevr_count": 0.25, "vtab/dmlab": 0.25}
    assert stamps(tmp_path)["pets"] == before["pets"]
    (tmp_path / "vtab.md").unlink()
    idle = Notes()
    assert run(idle, tmp_path, *tasks) == found and not idle.adapted
    assert (tmp_path / "vtab.md").exists()


def test_tasks_may_be_added_and_the_report_keeps_the_others(tmp_path):
    run(Notes(accuracy=0.5), tmp_path, job_of("dmlab"))
    found = run(Notes(accuracy=1.0), tmp_path, job_of("pets"))
    assert found == {"vtab/pets": 1.0, "vtab/dmlab": 0.5}
    assert "| VTAB (2 of 19 tasks) | 75.00 |" in (tmp_path / "vtab.md").read_text()


def test_another_setting_needs_another_folder(tmp_path):
    run(Notes(), tmp_path, job_of("dmlab"))
    other, notes = {"steps": "500", "learning rate": "0.01", "crop": "resize"}, Notes()
    with pytest.raises(
        ValueError,
        match="crop: there None, here resize\n  steps: there 2500, here 500\nChoose another",
    ):
        run(notes, tmp_path, job_of("pets"), plan=other)
    assert not notes.adapted


def test_other_data_are_not_taken_for_finished(tmp_path):
    run(Notes(), tmp_path, job_of("dmlab"))
    with pytest.raises(
        ValueError, match="dmlab contains a result on other data. There: dmlab 1.0. Here: dmlab 2.0"
    ):
        run(Notes(), tmp_path, job_of("dmlab", data="dmlab 2.0"))


def test_a_replaced_image_makes_other_data(tmp_path):
    for part in ("train", "test"):
        touch(tmp_path / "pets" / part, cat=5, dog=5)
    for part in ("train", "test"):
        (job,) = jobs([f"folder:{tmp_path}/pets"])
        (tmp_path / "pets" / part / "cat" / "0003.png").write_bytes(b"another of the same name")
        assert jobs([f"folder:{tmp_path}/pets"])[0].data != job.data


def test_a_run_without_any_result_does_not_take_the_folder(tmp_path):
    with pytest.raises(InterruptedError):
        run(Notes(stop_at="pets"), tmp_path, job_of("pets"), plan={"steps": "typo"})
    assert run(Notes(), tmp_path, job_of("pets")) == {"vtab/pets": 0.5}


# Data


def unprepared(reason: str):
    def sources_of() -> TaskSources:
        raise ValueError(reason)

    return sources_of


def test_what_is_fetched_by_hand_is_said_before_anything_runs(tmp_path, capsys):
    """In an empty folder, and without a network: the tests' own has none, and asking it fails the
    test.
    """
    notes = Notes()
    tasks = [job_of("pets"), *jobs(["specialized"], tmp_path / "data")]
    with pytest.raises(
        ValueError,
        match=r"(?s)No task was started.*resisc45: This data set .*NWPU-RESISC45.*retinopathy:.*kaggle",
    ):
        run(notes, tmp_path / "run", *tasks)
    assert not notes.adapted and not (tmp_path / "run").exists()
    words = capsys.readouterr().out
    assert "data on disk: Pets\n" in words
    assert "to be downloaded: Camelyon, EuroSAT\n" in words
    assert "manual download needed: Resisc45, Retinopathy\n" in words


def test_where_files_lie_they_are_tried(tmp_path, monkeypatch):
    assert "NWPU-RESISC45" in jobs(["resisc45"], tmp_path)[0].by_hand
    (tmp_path / "downloads" / "manual" / "NWPU-RESISC45").mkdir(parents=True)
    assert jobs(["resisc45"], tmp_path)[0].by_hand == ""
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path))
    assert jobs(["resisc45"])[0].by_hand == ""
    assert "NWPU-RESISC45" in jobs(["resisc45"], tmp_path / "other")[0].by_hand


def test_data_that_cannot_be_had_stop_everything_before_it_begins(tmp_path):
    notes = Notes()
    tasks = [
        job_of("pets"),
        job_of("dmlab", is_on_disk=False, sources=unprepared("no network here")),
    ]
    with pytest.raises(
        ValueError, match="dmlab: no network here\nAdd the data, request other tasks, or skip these"
    ):
        run(notes, tmp_path / "run", *tasks)
    assert not notes.adapted


def test_a_gap_is_left_only_on_request_and_is_recorded(tmp_path):
    notes = Notes()
    tasks = [
        job_of("resisc45", is_on_disk=False, by_hand="The .rar from elsewhere."),
        job_of("pets"),
        job_of("dmlab", is_on_disk=False, sources=unprepared("no network\nhere")),
    ]
    for _ in range(2):  # the second time nothing is left to do
        assert run(notes, tmp_path, *tasks, skip_missing=True) == {"vtab/pets": 0.5}
        page = (tmp_path / "vtab.md").read_text()
        assert (
            "- `resisc45`: This data set needs a manual download. The .rar from elsewhere.\n- `dmlab`: no "
            "network here" in page
        )
        assert "Not requested in the last call: `caltech101`, `cifar100`" in page
    assert [name for name, _, _ in notes.adapted] == ["pets"]
    with pytest.raises(
        ValueError, match="The data of all tasks are missing. .*The .rar from elsewhere"
    ):
        run(notes, tmp_path / "other", tasks[0], skip_missing=True)


def test_a_small_folder_of_your_own_is_said_to_be_small(tmp_path, capsys):
    touch(tmp_path / "pets", cat=20, dog=10)
    run(Notes(), tmp_path / "run", *jobs([f"folder:{tmp_path}/pets"]))
    assert "pets has only 24 training images instead of 1000" in capsys.readouterr().out
    assert "fewer training images: pets from 24" in (tmp_path / "run" / "vtab.md").read_text()


def test_what_was_left_out_of_a_folder_of_your_own_is_said(tmp_path, capsys):
    touch(tmp_path / "pets" / "train", cat=20, dog=10)
    touch(tmp_path / "pets" / "test", cat=3, dog=2, owl=4)
    (tmp_path / "pets" / "train" / "cat" / "notes.txt").touch()
    touch(tmp_path / "birds", finch=10, wren=10)
    (tmp_path / "birds" / "wren" / "notes.txt").touch()  # a fifth is held out: listed once
    run(
        Notes(),
        tmp_path / "run",
        *jobs([f"folder:{tmp_path}/{name}" for name in ("pets", "birds")]),
    )
    said, page = capsys.readouterr().out, (tmp_path / "run" / "vtab.md").read_text()
    for text in (said, page):
        (line,) = (line for line in text.splitlines() if line.strip().startswith("pets: Left out"))
        assert "Left out, 2: " in line and "not a class of the training set, 4 photos" in line
        assert "notes.txt" in line
        assert "birds: Left out, 1: not a photo by its suffix, .txt (1: notes.txt)." in text
    finished = tmp_path / "run" / "own_pets" / "result.json"
    result = json.loads(finished.read_text())
    assert "notes.txt" in result.pop("left_out")
    finished.write_text(json.dumps(result))  # as an earlier version wrote it
    assert vtab_report.read_result(finished.parent).left_out == ""


# Means and report


def result_of(task: str, percent: float, **changes) -> Result:
    row = TASKS.get(task)
    fields = {
        "title": row.title if row else task,
        "group": row.group if row else "own",
        "data": "",
        "learned_from": 1000,
    }
    numbers = {"top1": percent / 100, "images": 6149, "unreadable": 0}
    return Result(**{"task": task, **fields, "measured_on": "test", "numbers": numbers, **changes})


def whole_vtab() -> list[Result]:
    return [result_of(name, percent) for name, percent in VIT_H.items()]


def test_the_score_is_the_mean_of_the_nineteen():
    """With the paper's values for ViT-H/14: 77.6 is printed in Table 9; groups are added up by
    hand.
    """
    found = summary(whole_vtab())
    assert found["vtab/mean"] == pytest.approx(0.7763, abs=2e-4) and len(found) == 19 + 4
    assert found["vtab/natural"] == pytest.approx(606.8 / 7 / 100)
    assert found["vtab/specialized"] == pytest.approx(348.0 / 4 / 100)
    assert found["vtab/structured"] == pytest.approx(520.2 / 8 / 100)
    assert found["vtab/mean"] != pytest.approx((606.8 / 7 + 348.0 / 4 + 520.2 / 8) / 300, abs=1e-3)


def test_your_own_tasks_are_not_part_of_the_score():
    both = [*whole_vtab(), result_of("own_pets", 10.0)]
    assert summary(both)["vtab/mean"] == summary(whole_vtab())["vtab/mean"]
    assert [(mean.group, mean.ours, dict(mean.paper)) for mean in means(both)][-1] == (
        "own",
        10.0,
        {},
    )
    assert summary([result_of("own_pets", 10.0)]) == {"vtab/own_pets": 0.1}


def test_of_some_tasks_no_mean_of_vtab_is_claimed():
    some = [
        result_of("pets", 90.0),
        result_of("clevr_count", 60.0),
        result_of("dsprites_location", 45.0),
    ]
    assert summary(some) == {
        "vtab/pets": 0.9,
        "vtab/clevr_count": 0.6,
        "vtab/dsprites_location": 0.45,
    }
    everything, natural, structured = means(some)
    assert everything.title == "VTAB (3 of 19 tasks)" and not everything.is_whole
    assert everything.ours == pytest.approx(65.0)
    # Table 9 over the same three tasks.
    assert everything.paper == pytest.approx(
        {
            "ViT-H/14, JFT-300M": (97.2 + 91.7 + 79.4) / 3,
            "ViT-L/16, JFT-300M": (96.7 + 86.4 + 74.5) / 3,
            "ViT-L/16, ImageNet-21k": (92.7 + 70.3 + 74.7) / 3,
        }
    )
    assert (natural.title, natural.ours) == ("Natural (1 of 7 tasks)", 90.0)
    assert structured.paper["ViT-L/16, ImageNet-21k"] == pytest.approx((70.3 + 74.7) / 2)
    whole_group = means([result_of(name, 50.0) for name in list(TASKS)[7:11]])
    assert (whole_group[1].title, whole_group[1].is_whole) == ("Specialized (4 tasks)", True)


def test_all_nineteen_stand_beside_table_2():
    paper = dict(means(whole_vtab())[0].paper)
    assert paper == {
        "ViT-H/14, JFT-300M": 77.63,
        "ViT-L/16, JFT-300M": 76.28,
        "ViT-L/16, ImageNet-21k": 72.72,
        "BiT-L, JFT-300M": 76.29,
    }
    assert all("BiT-L, JFT-300M" not in mean.paper for mean in means(whole_vtab())[1:])


def write(workdir: Path, *results: Result, **options) -> str:
    for result in results:
        (workdir / result.task).mkdir(parents=True)
        write_result(workdir / result.task, result)
    return write_report(workdir, title="ViT_L16", facts=PLAN, **options).read_text()


def test_a_task_that_was_left_out_is_named_once_with_its_reason(drawn, tmp_path):
    left_out = {"dtd": "no\nnetwork", "svhn": "no room"}
    page = write(tmp_path, result_of("pets", 50.0), left_out=left_out)
    _, not_run = page.split("## Not run")
    assert "- `dtd`: no network\n- `svhn`: no room\n" in not_run
    others = not_run.partition("Not requested in the last call: ")[2].partition(".")[0].split(", ")
    assert others == [f"`{name}`" for name in TASKS if name not in ("pets", "dtd", "svhn")]


@pytest.mark.parametrize(("part", "whole"), [("test", 1000), ("validation", 800)])
def test_only_tasks_with_fewer_training_images_than_vtab_s_are_named(
    drawn, tmp_path, part: str, whole: int
):
    page = write(
        tmp_path,
        result_of("pets", 50.0, measured_on=part, learned_from=whole),
        result_of("own_a", 50.0, measured_on=part, learned_from=whole - 1),
    )
    assert f"Some folders have fewer training images: own_a from {whole - 1}." in page


def test_the_tables_have_a_row_for_each_task(tmp_path):
    numbers = {"top1": 0.43217, "images": 4999, "unreadable": 2}
    own = result_of("own_a", 0.0, title="a|b", learned_from=120, numbers=numbers)
    page = write(tmp_path, own, result_of("dmlab", 50.0), result_of("dtd", 80.0))
    rows = [line for line in page.splitlines() if line.startswith("| ")]
    assert "| DTD | natural | 1,000 | 6,149 | 80.00 | 75.2 | 74.3 | 74.1 |" in rows
    assert r"| a\|b | own | 120 | 4,999 (2 unreadable) | 43.22 | - | - | - |" in rows
    assert [row.split(" | ")[0] for row in rows].index("| DTD") < [
        row.split(" | ")[0] for row in rows
    ].index("| DMLab")
    assert "| learning rate | 0.01 |" in rows
    with open(tmp_path / "vtab.csv", newline="") as file:
        header, *lines = csv.reader(file)
    assert header[:4] == ["task", "group", "ours", "images"] and len(header) == 7
    assert lines == [
        ["dtd", "natural", "80.0000", "6149", "75.2", "74.3", "74.1"],
        ["dmlab", "structured", "50.0000", "6149", "53.1", "49.7", "41.9"],
        ["own_a", "own", "43.2170", "4999", "", "", ""],
    ]
    assert not list(tmp_path.glob(".partial*"))


@pytest.fixture
def drawn(monkeypatch) -> list[Figure]:
    figures = []

    @contextmanager
    def kept(path: Path, width: float, height: float):
        figures.append(Figure(figsize=(width, height), layout="constrained"))
        yield figures[-1]

    monkeypatch.setattr(vtab_report, "picture", kept)
    return figures


def bars(panel) -> list[float]:
    return [round(bar.get_y() + bar.get_height(), 2) for bar in panel.patches]


def test_the_picture_has_figure_2_above_and_the_tasks_below(drawn, tmp_path):
    write(tmp_path, *whole_vtab(), result_of("own_pets", 12.0))
    *panels, tasks = drawn[0].axes
    assert [panel.get_title() for panel in panels] == [
        "VTAB (19 tasks)",
        "Natural (7 tasks)",
        "Specialized (4 tasks)",
        "Structured (8 tasks)",
    ]
    assert bars(panels[0]) == [77.63, 77.63, 76.28, 72.72, 76.29]
    assert bars(panels[3]) == [65.03, 65.03, 62.96, 57.50]
    assert bars(tasks) == [*VIT_H.values(), 12.0]
    dots = [line.get_ydata() for line in tasks.lines]
    assert len(dots) == 3 and list(dots[0][:19]) == list(VIT_H.values()) and np.isnan(dots[0][19])
    assert [text.get_text() for text in tasks.get_xticklabels()] == [
        *(t.title for t in TASKS.values()),
        "own_pets",
    ]
    names = [
        text.get_text()
        for text in drawn[0]
        .findobj(match=lambda artist: type(artist).__name__ == "Legend")[0]
        .texts
    ]
    assert names == [
        "this run",
        "ViT-H/14, JFT-300M",
        "ViT-L/16, JFT-300M",
        "ViT-L/16, ImageNet-21k",
        "BiT-L, JFT-300M",
    ]


def test_panels_are_those_that_have_a_task(drawn, tmp_path):
    write(tmp_path / "some", result_of("pets", 0.0), result_of("dtd", 4.0))
    assert [panel.get_title() for panel in drawn[0].axes] == [
        "VTAB (2 of 19 tasks)",
        "Natural (2 of 7 tasks)",
        "",
    ]
    write(tmp_path / "own", result_of("own_$a^b$", 0.0))
    assert len(drawn[1].axes) == 1


def test_the_picture_can_be_saved(tmp_path):
    write(tmp_path, result_of("pets", 100.0), result_of("own_$a^b$", 0.0, title="$a^b$ \U0001f600"))
    assert (tmp_path / "vtab.png").read_bytes()[:4] == b"\x89PNG"


def test_a_job_has_the_images_and_the_changes_of_its_task(tmp_path: Path, monkeypatch):
    asked = []
    for name in ("task_sources", "is_prepared"):
        monkeypatch.setattr(
            sys.modules[vtab.__module__], name, lambda *all_, name=name: asked.append((name, *all_))
        )
    found = jobs(["all"], tmp_path)
    assert [(job.name, job.flip, job.crop) for job in found] == [
        (task.name, task.flip, task.crop) for task in TASKS.values()
    ]
    assert len({(job.flip, job.crop) for job in found}) > 2
    for job in found:
        job.sources()
    for name in ("task_sources", "is_prepared"):
        assert [call[1:] for call in asked if call[0] == name] == [
            (task, tmp_path) for task in TASKS.values()
        ]
