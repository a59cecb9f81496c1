"""VTAB-1k as in the paper: a model is fine-tuned on 19 tasks of 1000 images each in one setting,
and measured on each.

    python experiments/vtab.py --model=ViT_L16 --weights=imagenet21k --workdir=runs/vtab
    ... [--tasks=natural,clevr_count,folder:/data/pets] [--data_dir=/data/tfds] [--skip_missing] [--tune]
        [--config.<field>=value ...]
    python experiments/vtab.py --model=pets.keras --workdir=runs/vtab   # a model of this package, saved by Keras
    python experiments/vtab.py --smoke --tasks=folder:/data/pets --workdir=/tmp/vtab   # ten steps of a tiny model

The setting is that of `configs/finetune.py:vtab`: 2500 steps of 512 images at 384 pixels, SGD at
0.01. Where a flip or a crop would change the label there are none, as in BiT. Each task is learned
from 1000 images and measured once on its whole test set; with `--tune` from 800, measured on the
other 200, and no test set is read: that is how the paper chose its setting. A folder of your own,
`folder:PATH`, is treated as a task; without a test set, a fifth of it becomes one.

Data come from TensorFlow Datasets, and are downloaded where they are missing, before anything is
learned. Those of Resisc45 and of Retinopathy must be fetched by hand; without `--skip_missing`
nothing begins before they are there.

The same command goes on where it stopped: finished tasks are kept, the one that was interrupted
goes on from its checkpoint. Other tasks may be added to the same folder, another setting may not.
SIGTERM saves and exits with code 75. The results are in `vtab.md`, `vtab.csv` and `vtab.png`; each
task has a folder with its weights (`model.npz`) and its learning curve. Checkpoints of finished
tasks are removed.

Memory: 512 images of 384 pixels at once are for many accelerators.
`--config.run.accumulation_steps=64` computes 8 at a time, with the same result;
`--config.run.eval_batch_size=64` does so for the measurement.

arXiv:2010.11929, Table 4, B.1.1, Table 9; flips and crops: arXiv:1912.11370, appendix F.
"""

import shutil
import signal
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NoReturn

import command_line.native_logs

import keras
from absl import app, flags
from command_line.exit_codes import exit_code

from keras_vit.data.sources import Source
from keras_vit.devices import Devices, connect
from keras_vit.evaluate.accuracy import accuracy
from keras_vit.evaluate.vtab import Job, jobs, vtab
from keras_vit.keras_file import is_file
from keras_vit.train import FinetuneConfig, Stopped, load_config
from keras_vit.train.config import flatten_config, row_of
from keras_vit.train.finetune_recipe import name_of, settle
from keras_vit.train.run import Procedure, run
from keras_vit.train.workdir import check_folder
from keras_vit.weights import model_file, source
from keras_vit.weights.restore import restore

_MODEL = flags.DEFINE_string(
    "model", "ViT_B16", "A name of `keras_vit.list_models()`, or a file model.keras."
)
_WEIGHTS = flags.DEFINE_string(
    "weights", None, "Tag, file or URL; `none` are random ones. Default: the recipe's."
)
_WORKDIR = flags.DEFINE_string("workdir", None, "Folder of the run.", required=True)
_TASKS = flags.DEFINE_list("tasks", ["all"], "Tasks, groups, `all`, and folder:PATH.")
_DATA_DIR = flags.DEFINE_string("data_dir", None, "Of TensorFlow Datasets; default: its own.")
_TUNE = flags.DEFINE_bool(
    "tune", False, "Learn from the 800 and measure on the 200; the test sets stay closed."
)
_SKIP_MISSING = flags.DEFINE_bool(
    "skip_missing", False, "Leave out tasks whose data cannot be had."
)
_SMOKE = flags.DEFINE_bool("smoke", False, "Ten steps of a tiny model, to try the rest.")

RECIPE = Path(__file__).with_name("configs") / "finetune.py"
OVERRIDES = [
    arg.lstrip("-").removeprefix("config.")
    for arg in sys.argv
    if arg.lstrip("-").startswith("config.")
]
# What each task sets itself, and what may change from one part of a run to the next.
OURS = tuple(
    f"run.data.{name}" for name in ("kind", "name", "train", "test", "held_out", "train_share")
)
WHERE = ("run.devices.kind", "run.devices.names", "run.devices.jit_compile")


def main() -> None:
    """Does what is left of VTAB in the folder."""
    config, tasks = make_config(), jobs(_TASKS.value, _DATA_DIR.value)
    config, build = settle(config)
    if not is_file(config.model) and config.weights != "none":
        # a mistake is told before the data are downloaded
        source.find(config.model, config.weights)
    devices = connect(config.run.devices)
    if devices.num_workers > 1:
        raise ValueError(
            f"Received: {devices.description}. Tasks are learned on one machine each: start a "
            "process on every machine, each with its own --tasks; they may share the --workdir."
        )
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _stop)  # while a task is learned, the training has its own
    data = config.run.data
    found = vtab(
        tasks,
        partial(adapt, config, build, devices),
        _WORKDIR.value,
        title=f"{name_of(config)} from {config.weights}",
        plan={
            name: value
            for name, value in flatten_config(config).items()
            if name not in (*OURS, *WHERE)
        },
        tune=_TUNE.value,
        skip_missing=_SKIP_MISSING.value,
        measure=partial(
            accuracy,
            eval_crop=data.eval_crop,
            batch_size=config.run.eval_batch_size,
            devices=devices,
            strict=data.strict,
        ),
    )
    remove_checkpoints(Path(_WORKDIR.value).expanduser())
    print("\n".join(f"{name}: {share:.2%}" for name, share in found.items()))
    print(Path(_WORKDIR.value).expanduser() / "vtab.md", flush=True)


def make_config() -> FinetuneConfig:
    """The paper's setting for VTAB, with what the command line changes."""
    of_file = is_file(_MODEL.value)
    if not of_file:
        row_of(_MODEL.value, {})
    elif _WEIGHTS.value:
        raise ValueError(f"{_MODEL.value} brings its own weights: leave out --weights.")
    changed = [override.partition("=")[0] for override in OVERRIDES]
    if taken := [name for name in changed if name in OURS]:
        raise ValueError(
            "The tasks say what is learned from and measured on: leave out "
            f"--config.{', --config.'.join(taken)}."
        )
    words = ["vtab", *[_MODEL.value] * (not of_file), *["smoke"] * _SMOKE.value]
    weights = _WEIGHTS.value or ("none" if _SMOKE.value and not of_file else None)
    changes = [f"model={_MODEL.value}"] * of_file + [f"weights={weights}"] * (weights is not None)
    return load_config(f"{RECIPE}:{','.join(words)}", [*changes, *OVERRIDES])


def adapt(
    config: FinetuneConfig,
    build: Callable[[int], keras.Model],
    devices: Devices,
    job: Job,
    train: Source,
    folder: Path,
) -> keras.Model:
    """Fine-tunes on a task, from the checkpoint in its folder if there is one. Returns a model that
    gives logits.
    """
    remove_checkpoints(folder.parent)
    keras.utils.clear_session(free_memory=True)
    config = for_task(config, job, train)
    if not (check_folder(folder, config, (train, None)) and (folder / "results.json").exists()):
        procedure = Procedure(
            title=f"{name_of(config)} on {job.title}", build=build, image_size=config.image_size
        )
        run(config, folder, procedure, data=(train, None))
    with devices.scope():
        model = build(len(train.class_names))
        restore(
            model.layers,
            model_file.read(folder / "model.npz").ours(),
            origin=str(folder / "model.npz"),
        )
    return model


def for_task(config: FinetuneConfig, job: Job, train: Source) -> FinetuneConfig:
    """The same setting, with the data of a task, and without the flips and crops that would change
    its labels.
    """
    data = replace(
        config.run.data,
        kind="given",
        name=f"{job.data}; learned from {train.num_examples}",
        test="",
        flip=config.run.data.flip and job.flip,
        **({} if job.crop else {"crop": "resize", "crop_area": 0.05}),
    )
    return replace(
        config, run=replace(config.run, data=data, loop=replace(config.run.loop, evaluate_every=0))
    )


def remove_checkpoints(workdir: Path) -> None:
    """Those of finished tasks: they are twice or three times as large as the
    weights, which stay.
    """
    for result in workdir.glob("*/result.json"):
        shutil.rmtree(result.with_name("checkpoints"), ignore_errors=True)


def _stop(number: int, _: object) -> NoReturn:
    raise Stopped(f"Stopped by {signal.Signals(number).name}: rerun the same command to resume.")


if __name__ == "__main__":
    app.run(
        lambda _: exit_code(main),
        argv=[arg for arg in sys.argv if not arg.lstrip("-").startswith("config.")],
    )
