"""VTAB-1k as in the paper: fine-tunes a model on 19 tasks of 1000 images, with one setting for all.

    python experiments/vtab.py --model=ViT_L16 --weights=imagenet21k --workdir=runs/vtab
    ... [--tasks=natural,clevr_count,folder:/data/pets] [--data_dir=/data/tfds] [--skip_missing] [--tune]
        [--config.<field>=value ...]
    python experiments/vtab.py --model=pets.keras --workdir=runs/vtab   # a model of this package, saved by Keras
    python experiments/vtab.py --smoke --tasks=folder:/data/pets --workdir=/tmp/vtab   # ten steps of a tiny model

The setting is that of `configs/finetune.py:vtab`: 2500 steps of 512 images at 384 pixels, SGD with
a learning rate of 0.01. As in BiT, flips and crops are disabled where they would change the label.
Each task trains on 1000 images and is measured once on its whole test set. With `--tune` it trains
on 800 and is measured on the other 200, and no test set is read; this is how the paper chose its
setting. `folder:PATH`, a folder of your own, is treated as a task; if it has no test set, a fifth
of it becomes one.

Data come from TensorFlow Datasets. Missing data are downloaded before training starts. Resisc45 and
Retinopathy must be downloaded by hand; `--skip_missing` skips tasks without data.

If interrupted, rerun the same command to resume: finished tasks are kept, and the interrupted one
continues from its checkpoint. You can add tasks to the same folder, but not change the setting.
SIGTERM saves a checkpoint and exits with code 75. The results are written to `vtab.md`, `vtab.csv`
and `vtab.png`. The folder of each task holds its weights (`model.npz`) and its learning curve.
Checkpoints of finished tasks are removed.

Memory: 512 images of 384 pixels at once need many accelerators.
`--config.run.accumulation_steps=64` computes 8 at a time, with the same result;
`--config.run.eval_batch_size=64` measures in smaller batches.

Source: arXiv:2010.11929, Table 4, B.1.1, Table 9; flips and crops: arXiv:1912.11370, appendix F.
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
from command_line.exit_codes import exit_on_error

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
from keras_vit.weights import model_file
from keras_vit.weights.restore import restore

_MODEL = flags.DEFINE_string(
    "model", "ViT_B16", "A name of `keras_vit.list_models()`, or a file model.keras."
)
_WEIGHTS = flags.DEFINE_string(
    "weights", None, "Tag, file or URL; `none`: random weights. Default: the recipe's."
)
_WORKDIR = flags.DEFINE_string("workdir", None, "Folder of the results.", required=True)
_TASKS = flags.DEFINE_list("tasks", ["all"], "Tasks, groups, `all` or folder:PATH; with commas.")
_DATA_DIR = flags.DEFINE_string(
    "data_dir", None, "Folder of TensorFlow Datasets. Default: its own default."
)
_TUNE = flags.DEFINE_bool(
    "tune", False, "Train on 800 images, measure on the other 200; test sets are not read."
)
_SKIP_MISSING = flags.DEFINE_bool("skip_missing", False, "Skip tasks whose data are missing.")
_SMOKE = flags.DEFINE_bool("smoke", False, "A quick check: ten steps of a tiny model.")

RECIPE = Path(__file__).with_name("configs") / "finetune.py"
OVERRIDES = [
    arg.lstrip("-").removeprefix("config.")
    for arg in sys.argv
    if arg.lstrip("-").startswith("config.")
]
# Fields that each task sets.
OURS = tuple(
    f"run.data.{name}" for name in ("kind", "name", "train", "test", "held_out", "train_share")
)
# Fields that may change when a run is resumed.
WHERE = ("run.devices.kind", "run.devices.names", "run.devices.jit_compile")


@exit_on_error()
def main(_: list[str]) -> None:
    """Runs the tasks that the folder does not hold yet."""
    config, tasks = make_config(), jobs(_TASKS.value, _DATA_DIR.value)
    config, build = settle(config)  # raises errors before data are downloaded
    devices = connect(config.run.devices)
    if devices.num_workers > 1:
        raise ValueError(
            f"Each task must run on one machine. Received: {devices.description}. Start one "
            "process on each machine, with its own --tasks; they may share the --workdir."
        )
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _stop)  # during training its own handlers replace this one
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
    """Returns the paper's setting for VTAB, with the changes of the command line."""
    of_file = is_file(_MODEL.value)
    if not of_file:
        row_of(_MODEL.value, {})
    elif _WEIGHTS.value:
        raise ValueError(f"{_MODEL.value} contains its weights: leave out --weights.")
    changed = [override.partition("=")[0] for override in OVERRIDES]
    if taken := [name for name in changed if name in OURS]:
        raise ValueError(
            "The tasks set the training and test data: leave out "
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
    """Fine-tunes on a task; resumes from the checkpoint in its folder, if there is one.

    Returns:
        The model, with logits as output.
    """
    remove_checkpoints(folder.parent)
    keras.utils.clear_session(free_memory=True)
    config = set_task(config, job, train)
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


def set_task(config: FinetuneConfig, job: Job, train: Source) -> FinetuneConfig:
    """Returns the setting with the data of a task, without flips and crops that would change its
    labels.
    """
    data = replace(
        config.run.data,
        kind="given",
        name=f"{job.data}; learned from {train.num_examples}",  # part of config.json
        test="",
        flip=config.run.data.flip and job.flip,
        **({} if job.crop else {"crop": "resize", "crop_area": 0.05}),
    )
    return replace(
        config, run=replace(config.run, data=data, loop=replace(config.run.loop, evaluate_every=0))
    )


def remove_checkpoints(workdir: Path) -> None:
    """Removes the checkpoints of finished tasks. They are two to three times as large as the
    weights, which are kept.
    """
    for result in workdir.glob("*/result.json"):
        shutil.rmtree(result.with_name("checkpoints"), ignore_errors=True)


def _stop(number: int, _: object) -> NoReturn:
    raise Stopped(f"Stopped by {signal.Signals(number).name}: rerun the same command to resume.")


if __name__ == "__main__":
    argv = [arg for arg in sys.argv if not arg.lstrip("-").startswith("config.")]
    app.run(main, argv=argv)
