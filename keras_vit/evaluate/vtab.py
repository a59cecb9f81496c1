"""The VTAB-1k benchmark: a model is adapted to and evaluated on 19 tasks, or the user's folders.

The caller passes the function that adapts a model to a task. `vtab_tasks.py` contains the tasks,
`vtab_report.py` writes the report. An interrupted run can be resumed.

Source: arXiv:1910.04867 (VTAB); arXiv:2010.11929, section 4.1 and Table 9.
"""

import hashlib
import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import keras
import numpy as np

from keras_vit.data import folders
from keras_vit.data.sources import Source
from keras_vit.drawing import check_can_draw
from keras_vit.evaluate.accuracy import accuracy
from keras_vit.evaluate.vtab_report import (
    OWN,
    Result,
    read_result,
    read_results,
    summary,
    write_report,
    write_result,
)
from keras_vit.evaluate.vtab_tasks import (
    NUM_TRAIN,
    NUM_VALIDATION,
    TASKS,
    TaskSources,
    VtabTask,
    is_prepared,
    task_sources,
)
from keras_vit.suggestions import did_you_mean
from keras_vit.writing import group_by_reason, write_text

# Share of a folder without a test set that is used as test set, as in VTAB for EuroSAT and Resisc45.
HELD_OUT = 0.2
_FOLDER = "folder:"
_PLAN = "vtab.json"


@dataclass(frozen=True, kw_only=True)
class Job:
    """A task of VTAB, or a folder of the user.

    Attributes:
        name: Name of its folder, and part of the names of its metrics.
        title: Displayed name.
        group: "natural", "specialized", "structured" or "own".
        data: Description of the examples. Results with another description are not reused.
        flip, crop: Whether random flips and random crops preserve the label.
        sources: Function that opens the examples; it downloads and prepares them if necessary.
        is_on_disk: Whether `sources` needs no download.
        by_hand: Instructions for a manual download; "" if none is needed, or files are present.
    """

    name: str
    title: str
    group: str
    data: str
    flip: bool
    crop: bool
    sources: Callable[[], TaskSources]
    is_on_disk: bool
    by_hand: str


Adapt = Callable[[Job, Source, Path], keras.Model]
Measure = Callable[[keras.Model, Source], Mapping[str, float]]


def jobs(words: Sequence[str] = ("all",), data_dir: str | os.PathLike | None = None) -> list[Job]:
    """Returns the requested tasks: those of VTAB in the order of Table 9, then own folders.

    Nothing is downloaded. From an own folder, 1000 training images (800 and 200) are drawn with a
    fixed seed, or all if there are fewer. The test set is its whole test set, or a fifth of each
    class if it has none.

    Args:
        words: Names of `TASKS`, names of groups, "all", and "folder:PATH". The layout of a folder is
            that of `keras_vit.data.folders.training_and_test`.
        data_dir: Folder of VTAB's data sets. Default: TFDS_DATA_DIR, or ~/tensorflow_datasets.

    Raises:
        ValueError: If a task is unknown, with suggestions, or a folder has another layout.

    Example:
        >>> [job.title for job in jobs(["structured", "pets"], data_dir="an empty folder")][:3]
        ['Pets', 'Clevr-Count', 'Clevr-Dist']
    """
    choices = {name: [name] for name in TASKS}
    for task in TASKS.values():
        choices.setdefault(task.group, []).append(task.name)
    choices["all"] = [*TASKS]
    paths = [word.removeprefix(_FOLDER) for word in words if word.startswith(_FOLDER)]
    words = [word for word in words if not word.startswith(_FOLDER)]
    _check_words(words, choices, is_empty=not (words or paths))
    wanted = {name for word in words for name in choices[word]}
    found = [_make_vtab_job(TASKS[name], data_dir) for name in TASKS if name in wanted]
    found += [
        _make_folder_job(path)
        for path in dict.fromkeys(Path(path).expanduser().resolve() for path in paths)
    ]
    names = [job.name for job in found]
    if repeated := [job.data for job in found if names.count(job.name) > 1]:
        raise ValueError(
            f"These folders have the same name: {'; '.join(repeated)}. Run one of them with "
            f"another `workdir`."
        )
    return found


def _check_words(
    words: Sequence[str], choices: Mapping[str, Sequence[str]], *, is_empty: bool
) -> None:
    mistakes = ["No task was requested."] if is_empty else []
    for word in words:
        if word not in choices:
            mistakes.append(f"There is no task {word!r}.{did_you_mean(word, choices)}")
    if mistakes:
        raise ValueError(
            "\n".join([*mistakes, f"Available: {', '.join(choices)}, and folder:PATH."])
        )


def _make_vtab_job(task: VtabTask, data_dir: str | os.PathLike | None) -> Job:
    is_there = is_prepared(task, data_dir)
    by_hand = _find_data_dir(data_dir) / "downloads" / "manual"
    # The preparation checks whether these are the right files.
    has_files = by_hand.is_dir() and any(by_hand.iterdir())
    return Job(
        name=task.name,
        title=task.title,
        group=task.group,
        data=f"{task.dataset}: {task.train}, {NUM_VALIDATION} of {task.validation}, {task.test}",
        flip=task.flip,
        crop=task.crop,
        sources=lambda: task_sources(task, data_dir),
        is_on_disk=is_there,
        by_hand="" if is_there or has_files else task.manual,
    )


def _find_data_dir(data_dir: str | os.PathLike | None) -> Path:
    return Path(data_dir or os.environ.get("TFDS_DATA_DIR") or "~/tensorflow_datasets").expanduser()


def _make_folder_job(path: Path) -> Job:
    training, test = folders.training_and_test(path)
    if test is None:
        test, training = training.split_by_class(HELD_OUT)
    drawn = np.random.default_rng(0).permutation(training.num_examples)[
        : NUM_TRAIN + NUM_VALIDATION
    ]
    first = min(len(drawn) - 1, round(len(drawn) * NUM_TRAIN / (NUM_TRAIN + NUM_VALIDATION)))
    opened = TaskSources(
        train=training.subset(np.sort(drawn[:first])),
        validation=training.subset(np.sort(drawn[first:])),
        train_and_validation=training.subset(np.sort(drawn)),
        test=test,
    )
    name = re.sub(r"\W+", "_", path.name)
    return Job(
        name=f"{OWN}_{name}",
        title=path.name,
        group=OWN,
        data=f"{path}, sha256 {_hash_sources(opened.train, opened.validation, test)[:16]}",
        flip=True,
        crop=True,
        sources=lambda: opened,
        is_on_disk=True,
        by_hand="",
    )


def _hash_sources(*parts: Source) -> str:
    return hashlib.sha256("".join(part.sha256() for part in parts).encode()).hexdigest()


def vtab(
    tasks: Sequence[Job],
    adapt: Adapt,
    workdir: str | os.PathLike,
    *,
    title: str,
    plan: Mapping[str, str],
    tune: bool = False,
    skip_missing: bool = False,
    measure: Measure = accuracy,
) -> dict[str, float]:
    """Adapts a model to each task and evaluates it; writes a folder per task and a report.

    The same call on the same folder resumes an interrupted run: finished tasks
    (`<task>/result.json`) are skipped, and `adapt` receives the folder of the task, with files that
    it may have left. A later call may add tasks. The report (`vtab.md`, `vtab.csv`, `vtab.png`) is
    rewritten after each task. Before the first task, all data sets are opened, and missing ones are
    downloaded and prepared.

    Args:
        tasks: From `jobs`.
        adapt: Function from (job, training images, folder of the task) to a model that outputs
            logits. It must respect `flip` and `crop` of the job.
        workdir: Folder of the run.
        title: Title of the report, such as the name of the model.
        plan: Settings that affect the results, by name. All runs in a folder must have the same.
        tune: Trains on the 800 and evaluates on the 200 examples, to select hyperparameters; no
            image of a test set is read. Otherwise trains on the 1000 and evaluates once on the
            whole test set.
        skip_missing: Skips tasks whose data are not available; the report lists them.
        measure: Function from (model, images) to metrics, including "top1" and "images".

    Returns:
        Accuracies of all finished tasks in the folder, as shares: "vtab/<task>", "vtab/<group>" for
        complete groups of VTAB, and "vtab/mean" if all 19 tasks are finished.

    Raises:
        ValueError: If data are missing, with instructions, or the folder contains results of another
            plan or other data.
        ImportError: If matplotlib is absent; the message names the package to install.

    Example:
        >>> images = np.random.default_rng(0).integers(0, 256, (20, 16, 16, 3)).astype("uint8")
        >>> for number, image in enumerate(images):
        ...     path = Path("pets", "cat" if number % 2 else "dog", f"{number}.png")
        ...     path.parent.mkdir(parents=True, exist_ok=True)
        ...     keras.utils.save_img(path, image)
        >>> def adapt(job, train, folder):
        ...     return keras_vit.ViT_Ti16(weights=None, input_shape=(16, 16, 3), classes=2, classifier_activation=None)
        >>> vtab(jobs(["folder:pets"]), adapt, "run", title="untrained", plan={"steps": "0"})
        1 task, 0 already finished.
          data on disk: pets
          pets has only 16 training images instead of 1000
        [1/1] pets: 16 training images, 4 evaluation images (test)
        pets: accuracy 50.00% on 4 images
        {'vtab/own_pets': 0.5}

    Source: arXiv:1910.04867 (VTAB); arXiv:2010.11929, B.1.1.
    """
    workdir, part = Path(workdir).expanduser(), "validation" if tune else "test"
    check_can_draw()
    plan = {"measured on": part, **plan}
    _check_plan(workdir, plan)
    todo = [job for job in tasks if not _is_finished(job, workdir / job.name)]
    print(_describe_work(todo, len(tasks)), flush=True)
    left_out = _get_data(todo, skip_missing)
    todo = [job for job in todo if job.name not in left_out]
    for number, job in enumerate(todo, start=1):
        print(f"[{number}/{len(todo)}]", end=" ")
        result = _run(job, adapt, workdir / job.name, part, measure)
        write_text(workdir / _PLAN, json.dumps(plan, indent=1) + "\n")
        write_result(workdir / job.name, result)
        write_report(workdir, title=title, facts=plan, left_out=left_out)
    if left_out and not any(workdir.glob("*/result.json")):
        raise ValueError(f"The data of all tasks are missing. {' '.join(left_out.values())}")
    if not todo:  # other tasks may be skipped than before
        write_report(workdir, title=title, facts=plan, left_out=left_out)
    return summary(read_results(workdir))


def _check_plan(workdir: Path, plan: Mapping[str, str]) -> None:
    """Raises a ValueError if the folder contains results of another plan."""
    # The plan is written with the first result, so that a run without results does not claim a
    # folder.
    if not (workdir / _PLAN).exists():
        return
    theirs = json.loads((workdir / _PLAN).read_text(encoding="utf-8"))
    different = [name for name in sorted({*plan, *theirs}) if plan.get(name) != theirs.get(name)]
    if different:
        lines = [
            f"  {name}: there {theirs.get(name)}, here {plan.get(name)}" for name in different[:12]
        ]
        raise ValueError(
            "\n".join([f"{workdir} contains another VTAB run:", *lines, "Choose another folder."])
        )


def _is_finished(job: Job, folder: Path) -> bool:
    if not (folder / "result.json").exists():
        return False
    result = read_result(folder)
    if result.data != job.data:
        raise ValueError(
            f"{folder} contains a result on other data. There: {result.data}. Here: {job.data}. "
            "Choose another folder for the run, or remove this one."
        )
    return True


def _describe_work(todo: Sequence[Job], count: int) -> str:
    """Describes the remaining tasks and the state of their data."""
    lines = [f"{count} task{'s' * (count > 1)}, {count - len(todo)} already finished."]
    kinds = {
        "data on disk": [job.title for job in todo if job.is_on_disk],
        "to be downloaded": [job.title for job in todo if not job.is_on_disk and not job.by_hand],
        "manual download needed": [job.title for job in todo if job.by_hand],
    }
    lines += [f"  {kind}: {', '.join(titles)}" for kind, titles in kinds.items() if titles]
    whole_task = NUM_TRAIN + NUM_VALIDATION
    for job in todo:
        if (
            job.group == OWN
            and (count := job.sources().train_and_validation.num_examples) < whole_task
        ):
            lines += [f"  {job.title} has only {count} training images instead of {whole_task}"]
    for job in todo:
        if job.group == OWN and (left_out := _summarize_left_out(job.sources())):
            lines += [f"  {job.title}: {left_out}"]
    return "\n".join(lines)


def _summarize_left_out(opened: TaskSources) -> str:
    # Both parts of a folder without a test set list the files of the whole folder.
    files = (*opened.train_and_validation.left_out, *opened.test.left_out)
    return group_by_reason(dict.fromkeys(files))


def _get_data(todo: Sequence[Job], skip_missing: bool) -> dict[str, str]:
    """Opens all data sets, downloads missing ones, and returns the unavailable ones with reasons."""
    missing = {
        job.name: f"This data set needs a manual download. {job.by_hand}"
        for job in todo
        if job.by_hand
    }
    for job in todo:
        if missing and not skip_missing:
            break
        if job.name not in missing:
            try:
                job.sources()
            except ValueError as error:
                missing[job.name] = str(error)
    if missing and not skip_missing:
        lines = [f"  {name}: {reason}" for name, reason in missing.items()]
        way_out = "Add the data, request other tasks, or skip these with `skip_missing`."
        raise ValueError("\n".join(["Data are missing. No task was started.", *lines, way_out]))
    return missing


def _run(job: Job, adapt: Adapt, folder: Path, part: str, measure: Measure) -> Result:
    opened = job.sources()
    learned, measured = opened.train_and_validation, opened.test
    if part == "validation":
        learned, measured = opened.train, opened.validation
    counts = f"{learned.num_examples:,} training images, {measured.num_examples:,} evaluation images ({part})"
    print(f"{job.title}: {counts}", flush=True)
    folder.mkdir(parents=True, exist_ok=True)
    numbers = dict(measure(adapt(job, learned, folder), measured))
    print(
        f"{job.title}: accuracy {numbers['top1']:.2%} on {numbers['images']:,} images", flush=True
    )
    return Result(
        task=job.name,
        title=job.title,
        group=job.group,
        data=job.data,
        learned_from=learned.num_examples,
        measured_on=part,
        numbers=numbers,
        left_out=_summarize_left_out(opened) if job.group == OWN else "",
    )
