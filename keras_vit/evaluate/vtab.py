"""VTAB: one model is adapted to 19 tasks of 1000 images each, and measured on each; or to folders
of your own so.

What lives here: which tasks, whether their data are there, and one task after the other, gone on
    with after a stop.
What does not: how a model learns a task, which is a function that the caller passes; the tasks
themselves (`vtab_tasks.py`); tables and picture (`vtab_report.py`).

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
from keras_vit.writing import write_text

# Of a folder without a test set: as much as VTAB takes of EuroSAT and Resisc45, which have none
# either.
HELD_OUT = 0.2
_FOLDER = "folder:"
_PLAN = "vtab.json"


@dataclass(frozen=True, kw_only=True)
class Job:
    """A task to be learned: one of VTAB's, or a folder of your own.

    Attributes:
        name: Of its folder, and in the names of its numbers.
        title: Its name for people.
        group: "natural", "specialized", "structured" or "own".
        data: Which examples, in words: a result on others is not the result of this task.
        flip, crop: Whether random flips and random crops leave the label as it is.
        sources: Opens the examples; downloads and prepares them if need be.
        is_on_disk: Whether `sources` has nothing to download.
        by_hand: What must be put there by hand first; "" if nothing, or if something lies there.
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
    """Returns the tasks of these names: VTAB's in the order of Table 9, then your own. Downloads
    nothing.

    A folder of your own takes the part of a task: 1000 of its training images, drawn at random but
    always the same, 800 and 200 (all of them, where there are fewer), and its whole test set; where
    it has none, a fifth of each class.

    Args:
        words: Names of `TASKS`, of groups, "all", and "folder:PATH"; a folder is laid out as for
            `keras_vit.data.folders.training_and_test`.
        data_dir: The folder of VTAB's data sets. Default: TFDS_DATA_DIR, or ~/tensorflow_datasets.

    Raises:
        ValueError: If there is no such task, with its neighbours; or a folder is not laid out so.

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
    found = [_of_vtab(TASKS[name], data_dir) for name in TASKS if name in wanted]
    found += [
        _of_folder(path)
        for path in dict.fromkeys(Path(path).expanduser().resolve() for path in paths)
    ]
    names = [job.name for job in found]
    if repeated := [job.data for job in found if names.count(job.name) > 1]:
        raise ValueError(
            f"These folders would have names in common: {'; '.join(repeated)}. Run one of them in "
            f"another folder."
        )
    return found


def _check_words(
    words: Sequence[str], choices: Mapping[str, Sequence[str]], *, is_empty: bool
) -> None:
    mistakes = ["No task is named."] if is_empty else []
    for word in words:
        if word not in choices:
            mistakes.append(f"There is no task {word!r}.{did_you_mean(word, choices)}")
    if mistakes:
        raise ValueError(
            "\n".join([*mistakes, f"There are: {', '.join(choices)}, and folder:PATH."])
        )


def _of_vtab(task: VtabTask, data_dir: str | os.PathLike | None) -> Job:
    is_there = is_prepared(task, data_dir)
    by_hand = _all_data(data_dir) / "downloads" / "manual"
    # Whether they are the right ones is seen when it is prepared.
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


def _all_data(data_dir: str | os.PathLike | None) -> Path:
    return Path(data_dir or os.environ.get("TFDS_DATA_DIR") or "~/tensorflow_datasets").expanduser()


def _of_folder(path: Path) -> Job:
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
        data=f"{path}, sha256 {_sha256(opened.train, opened.validation, test)[:16]}",
        flip=True,
        crop=True,
        sources=lambda: opened,
        is_on_disk=True,
        by_hand="",
    )


def _sha256(*parts: Source) -> str:
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
    """Adapts a model to each task and measures it, with a folder for each task and a report over
    all.

    The same call on the same folder goes on where it stopped: a finished task
    (`<task>/result.json`) is not done again, and `adapt` is given the folder in which it may have
    left something. Other tasks may be added by a later call. The report, `vtab.md`, `vtab.csv` and
    `vtab.png`, is written anew whenever a task is finished. Before anything is learned, all data
    sets are opened, and those that are missing downloaded and prepared.

    Args:
        tasks: From `jobs`.
        adapt: (job, training images, folder of the task) to a model that gives logits; it must
            respect `flip` and `crop` of the job.
        workdir: Folder of the run.
        title: Of the report: which model.
        plan: What the numbers depend on besides the tasks, by name. A folder takes one plan alone.
        tune: Learn from the 800 and measure on the 200, for choosing a setting; no image of a test
            set is read. Else learn from the 1000 and measure once on the whole test set.
        skip_missing: Leave out tasks whose data cannot be had; the report says so.
        measure: (model, images) to numbers, "top1" and "images" among them.

    Returns:
        Of all finished tasks in the folder: "vtab/<task>", "vtab/<group>" for each whole group of
        VTAB, and "vtab/mean" if all 19 are there; shares.

    Raises:
        ValueError: If data are missing, with what to do; if the folder holds another plan or
            results on other data.
        ImportError: If matplotlib is absent; the message says what to install.

    Example:
        >>> images = np.random.default_rng(0).integers(0, 256, (20, 16, 16, 3)).astype("uint8")
        >>> for number, image in enumerate(images):
        ...     path = Path("pets", "cat" if number % 2 else "dog", f"{number}.png")
        ...     path.parent.mkdir(parents=True, exist_ok=True)
        ...     keras.utils.save_img(path, image)
        >>> def adapt(job, train, folder):
        ...     return keras_vit.ViT_Ti16(weights=None, input_shape=(16, 16, 3), classes=2, classifier_activation=None)
        >>> vtab(jobs(["folder:pets"]), adapt, "run", title="untrained", plan={"steps": "0"})
        1 task, 0 finished before.
          data on the disk: pets
          pets has 16 images to learn from instead of 1000: all are taken
        [1/1] pets: learned from 16 images, measured on 4 (test)
        pets: 50.00% of 4 images
        {'vtab/own_pets': 0.5}

    Source: arXiv:1910.04867 (VTAB); arXiv:2010.11929, B.1.1.
    """
    workdir, part = Path(workdir).expanduser(), "validation" if tune else "test"
    check_can_draw()
    plan = {"measured on": part, **plan}
    _check_plan(workdir, plan)
    todo = [job for job in tasks if not _is_finished(job, workdir / job.name)]
    print(_in_words(todo, len(tasks)), flush=True)
    left_out = _get_data(todo, skip_missing)
    todo = [job for job in todo if job.name not in left_out]
    for number, job in enumerate(todo, start=1):
        print(f"[{number}/{len(todo)}]", end=" ")
        result = _do(job, adapt, workdir / job.name, part, measure)
        write_text(workdir / _PLAN, json.dumps(plan, indent=1) + "\n")
        write_result(workdir / job.name, result)
        write_report(workdir, title=title, facts=plan, left_out=left_out)
    if left_out and not any(workdir.glob("*/result.json")):
        raise ValueError(f"Nothing is left to do. {' '.join(left_out.values())}")
    if not todo:  # what is left out may be other tasks than before
        write_report(workdir, title=title, facts=plan, left_out=left_out)
    return summary(read_results(workdir))


def _check_plan(workdir: Path, plan: Mapping[str, str]) -> None:
    """A folder has a plan from its first result on: a run that never got there must not take it."""
    if not (workdir / _PLAN).exists():
        return
    theirs = json.loads((workdir / _PLAN).read_text(encoding="utf-8"))
    different = [name for name in sorted({*plan, *theirs}) if plan.get(name) != theirs.get(name)]
    if different:
        lines = [
            f"  {name}: there {theirs.get(name)}, here {plan.get(name)}" for name in different[:12]
        ]
        raise ValueError(
            "\n".join([f"{workdir} holds another VTAB run:", *lines, "Choose another folder."])
        )


def _is_finished(job: Job, folder: Path) -> bool:
    if not (folder / "result.json").exists():
        return False
    result = read_result(folder)
    if result.data != job.data:
        raise ValueError(
            f"{folder} holds the result on other data. There: {result.data}. Here: {job.data}. "
            f"Choose another folder "
            "for the run, or remove this one."
        )
    return True


def _in_words(todo: Sequence[Job], count: int) -> str:
    """What is going to be done, and where the data are."""
    lines = [f"{count} task{'s' * (count > 1)}, {count - len(todo)} finished before."]
    kinds = {
        "data on the disk": [job.title for job in todo if job.is_on_disk],
        "to be downloaded": [job.title for job in todo if not job.is_on_disk and not job.by_hand],
        "not there, by hand": [job.title for job in todo if job.by_hand],
    }
    lines += [f"  {kind}: {', '.join(titles)}" for kind, titles in kinds.items() if titles]
    whole_task = NUM_TRAIN + NUM_VALIDATION
    for job in todo:
        if (
            job.group == OWN
            and (count := job.sources().train_and_validation.num_examples) < whole_task
        ):
            lines += [
                f"  {job.title} has {count} images to learn from instead of {whole_task}: all are "
                f"taken"
            ]
    return "\n".join(lines)


def _get_data(todo: Sequence[Job], skip_missing: bool) -> dict[str, str]:
    """Opens everything once; downloads and prepares what is missing. Returns what cannot be had,
    with the reason.
    """
    missing = {job.name: f"To be downloaded by hand. {job.by_hand}" for job in todo if job.by_hand}
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
        way_out = (
            "Put them there, name other tasks, or leave out what is missing with `skip_missing`."
        )
        raise ValueError("\n".join(["Data are missing, and nothing was begun.", *lines, way_out]))
    return missing


def _do(job: Job, adapt: Adapt, folder: Path, part: str, measure: Measure) -> Result:
    opened = job.sources()
    learned, measured = opened.train_and_validation, opened.test
    if part == "validation":
        learned, measured = opened.train, opened.validation
    counts = f"learned from {learned.num_examples:,} images, measured on {measured.num_examples:,} ({part})"
    print(f"{job.title}: {counts}", flush=True)
    folder.mkdir(parents=True, exist_ok=True)
    numbers = dict(measure(adapt(job, learned, folder), measured))
    print(f"{job.title}: {numbers['top1']:.2%} of {numbers['images']:,} images", flush=True)
    return Result(
        task=job.name,
        title=job.title,
        group=job.group,
        data=job.data,
        learned_from=learned.num_examples,
        measured_on=part,
        numbers=numbers,
    )
