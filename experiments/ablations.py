"""The ablations of the paper: each study compares several arms over several seeds, in one command.

    python experiments/ablations.py --list
    python experiments/ablations.py --study=positions --data=/data/cifar10 --workdir=runs/positions
    ... [--data=tfds] [--seeds=3] [--parallel=1] [--config.<field>=value ...]
    python experiments/ablations.py --study=positions --size=smoke --workdir=/tmp/positions

    class_token   class token or mean of the patches; learning rates    D.3, Figure 9
    positions     kind and place of position embeddings                 D.4, Table 8
    shape         depth, width, MLP, patches: against compute           D.2, Figure 8
    optimizer     Adam or SGD for ResNets                               D.1, Table 7
    axial         axial attention in a ViT and in a ResNet              D.6, Figure 13
    hybrid        ViT, hybrid and ResNet at equal compute               4.4, Figure 5, Table 6
    crop          three crop policies in fine-tuning                    B.1.1
    data_size     ViT and ResNet on nested shares of the training set   4.3, Figure 4

Each run is trained by `keras_vit.train`, tested at its end on the whole test set, and measured by
few-shot regression on its frozen features. Results: `ablation.md` (means, standard deviations, the
paper's numbers, its claims and whether they hold here), `ablation.png`, `ablation.csv` (every run
with its command) and `ablation.json`.

Each run is a process with its own folder, `<arm>/seed_<n>`; its output is in `log.txt`. If
interrupted, rerun the same command to resume; finished runs are not repeated. You can increase
`--seeds` later. Use another folder for another study. SIGTERM is passed on to the runs; when they
have saved, the exit code is 75. A run that diverges is reported, and its arm gets no mean.
`--only=<arm>/seed_<n>` performs a single run in this process, for example on another machine.
`--config.<field>=value` changes a field in every arm, except the fields that the arms differ in.
`--parallel` works as in `sweep.py`.

Time: with `--size=cifar10` the three seeds of a study take one to six hours on two CPU cores.
`--list` prints an estimate from the compute and from the speed of the small ViT of
`configs/cifar10_scratch.py`, 375 images per second on two idle cores. No GPU has been measured.
With `--size=smoke` (tiny models on scikit-learn's digits) a run takes seconds, and the start of
TensorFlow.
"""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import command_line.native_logs

from ablations.arms import SIZES, START, Study
from ablations.report import find_differences, judge_claims, write_report
from ablations.runs import METRIC, RESULT, remove_checkpoints, train_and_measure
from ablations.studies import STUDIES, make_study
from absl import app, flags
from command_line.exit_codes import exit_on_error
from command_line.trials import Pool, Trial, check_plan, claim, data_of, read_json

from keras_vit.drawing import check_can_draw
from keras_vit.train import Diverged, pretrain
from keras_vit.train.recipes import with_fields
from keras_vit.weights.secrets import join_command
from keras_vit.writing import write_json

_STUDY = flags.DEFINE_string("study", None, f"One of: {', '.join(STUDIES)}.")
_WORKDIR = flags.DEFINE_string("workdir", None, "Folder of the study.")
_SIZE = flags.DEFINE_string("size", "cifar10", f"One of: {', '.join(SIZES)}.")
_DATA = flags.DEFINE_string(
    "data", None, "CIFAR-10: a folder with train/<class> and test/<class>, or tfds."
)
_SEEDS = flags.DEFINE_integer("seeds", None, "Runs per arm. Default: 3; with --size=smoke 2.")
_PARALLEL = flags.DEFINE_integer("parallel", 1, "Maximum number of parallel runs.")
_ONLY = flags.DEFINE_string("only", None, "Perform a single run: <arm>/seed_<n>.")
_LIST = flags.DEFINE_bool("list", False, "List the studies and exit.")

OVERRIDES = [arg for arg in sys.argv if arg.lstrip("-").startswith("config.")]
OURS = {
    "run.seed": "--seeds",
    "run.data.kind": "--data",
    "run.data.name": "--data",
    "weights": "--workdir",
}
START_RUN = f"{START}/seed_0"


@exit_on_error()
def main(_: list[str]) -> None:
    """Runs the study in its folder, or the rest of it."""
    if _LIST.value:
        print("\n".join(map(describe, STUDIES)))
        return
    study, folder, seeds = read_flags()
    if _ONLY.value is not None:
        run_one(study, folder, _ONLY.value)
        return
    check_can_draw()
    arms = {name: asdict(arm.config) for name, arm in study.arms.items()}
    runs = [arm.config.run for arm in study.arms.values()] + (
        [] if study.start is None else [study.start.run]
    )
    plan = {"study": _STUDY.value, "size": _SIZE.value, "seeds": seeds, "arms": arms}
    # first without the data, which may be missing or take long to hash
    check_plan(folder / "ablation.json", plan, free=("seeds", "data_sha256"))
    claim(folder / "ablation.json", {**plan, "data_sha256": data_of(*runs)}, free=("seeds",))
    pool = Pool(_PARALLEL.value, folder, "ablation")
    pool.catch_signals()
    if study.start is not None:
        start = _make_trial(folder, START, 0, result="results.json", metric="validation/accuracy")
        pool.run([start], folder / START)
        if not start.results():
            raise Diverged(
                f"{START_RUN} diverged, whose weights all arms start from. "
                f"{start.notes()['diverged']}"
            )
    # all arms with one seed, then with the next, so that the arms can be compared before the end
    trials = [_make_trial(folder, name, seed) for seed in range(seeds) for name in study.arms]
    try:
        pool.run(trials, folder)
        for trial in trials:
            # for a run that was killed after it wrote its result and before it removed them
            remove_checkpoints(trial.folder)
    finally:
        page = write_results(study, folder, trials)
    print(page.read_text(encoding="utf-8"))
    print(page, flush=True)


def describe(name: str) -> str:
    """Returns the line of a study in `--list`, with its estimated time on two CPU cores."""
    study = make_study(name, "cifar10", {"kind": "tfds", "name": "cifar10"})
    configs = [arm.config for arm in study.arms.values()]
    images = configs[0].run.batch_size * configs[0].run.loop.total_steps
    seconds = sum(
        images * (arm.macs / MACS_PER_SECOND + SECONDS_PER_IMAGE) + SECONDS_PER_RUN
        for arm in study.arms.values()
    )
    return f"{name:13}{study.title} ({study.source}): {len(study.arms)} arms, {3 * seconds / 3600:.1f} h for 3 seeds"


# On two cores: 375 images per second at 33.3 million MACs (experiments/README.md), and 2500 with a
# negligible model.
SECONDS_PER_IMAGE = 1 / 2500
MACS_PER_SECOND = 33.3e6 / (1 / 375 - SECONDS_PER_IMAGE)
SECONDS_PER_RUN = 60  # start, compilation, evaluation


def read_flags() -> tuple[Study, Path, int]:
    """Returns the study, its folder and the number of seeds.

    Raises:
        ValueError: Lists all faults of the flags.
    """
    seeds = (2 if _SIZE.value == "smoke" else 3) if _SEEDS.value is None else _SEEDS.value
    faults = {
        f"`--study` is missing: --study=NAME, one of {', '.join(STUDIES)}.": not _STUDY.value,
        "`--workdir` is missing: name the folder of the study.": not _WORKDIR.value,
        f"`--seeds` must be at least 1. Received: {seeds}.": seeds < 1,
        f"`--parallel` must be at least 1. Received: {_PARALLEL.value}.": _PARALLEL.value < 1,
        "`--data` is missing: --data=/data/cifar10, a folder with train/<class> and test/<class>, or --data=tfds.": (
            _SIZE.value == "cifar10" and not _DATA.value
        ),
        "`--data` must not be given with --size=smoke, which trains on scikit-learn's digits.": (
            _SIZE.value == "smoke" and _DATA.value
        ),
    }
    if found := [message for message, is_present in faults.items() if is_present]:
        raise ValueError("\n".join(found))
    return override_study(), Path(_WORKDIR.value).expanduser(), seeds


def _parse_data() -> Mapping[str, str]:
    if not _DATA.value:
        return {}
    if _DATA.value == "tfds" or _DATA.value.startswith("tfds:"):
        return {
            "kind": "tfds",
            "name": _DATA.value.removeprefix("tfds").removeprefix(":") or "cifar10",
        }
    return {"kind": "image_folder", "name": _DATA.value}


def override_study() -> Study:
    """Returns the study with the changes of the command line applied to every arm.

    Raises:
        ValueError: If a change concerns a field that other flags set or that the arms differ in.
    """
    named = _STUDY.value, _SIZE.value, _parse_data()
    pairs = [arg.lstrip("-").removeprefix("config.").partition("=") for arg in OVERRIDES]
    changes = {name: text for name, _, text in pairs}
    arms = make_study(*named).arms
    varied = {field for values in find_differences(arms).values() for field in values}
    wrong = [f"`{name}` is set by {OURS[name]}." for name in changes if name in OURS]
    wrong += [
        f"`{name}` must not be changed: the arms differ in it."
        for name in changes
        if any(
            f"{field}.".startswith(f"{name}.") or f"{name}.".startswith(f"{field}.")
            for field in varied
        )
    ]
    wrong += (
        ["`run.data.test` must not be empty: every run is tested at its end."]
        if changes.get("run.data.test") == ""
        else []
    )
    if wrong:
        raise ValueError("\n".join(wrong))
    study = make_study(*named, changes)
    arms = {
        name: replace(arm, config=with_fields(arm.config, changes))
        for name, arm in study.arms.items()
    }
    return replace(study, arms=arms)


def run_one(study: Study, folder: Path, name: str) -> None:
    """Performs a single run in this process.

    Args:
        name: <arm>/seed_<n>.
    """
    arm, _, seed = name.partition("/seed_")
    if name == START_RUN and study.start is not None:
        pretrain(study.start, folder / name)
    elif arm in study.arms and seed.isdecimal():
        config = study.arms[arm].config
        config = replace(config, run=replace(config.run, seed=int(seed)))
        if study.start is not None:
            config = replace(config, weights=str(folder / START_RUN / "model.npz"))
        train_and_measure(config, folder / name)
    else:
        raise ValueError(
            f"`--only` must be <arm>/seed_<n>, with an arm of {', '.join(study.arms)}. Received: "
            f"{name!r}."
        )


def _make_trial(
    folder: Path, arm: str, seed: int, *, result: str = RESULT, metric: str = METRIC
) -> Trial:
    name = f"{arm}/seed_{seed}"
    data = [f"--data={_DATA.value}"] if _DATA.value else []
    asked = [
        f"--study={_STUDY.value}",
        f"--size={_SIZE.value}",
        *data,
        f"--workdir={folder}",
        *OVERRIDES,
    ]
    return Trial(
        name=name,
        folder=folder / name,
        command=(sys.argv[0], *asked, f"--only={name}"),
        tries={"arm": arm, "seed": seed},
        result=result,
        metric=metric,
    )


def write_results(study: Study, folder: Path, trials: Sequence[Trial]) -> Path:
    """Writes the results so far, and returns the path of the page."""
    rows: list[dict[str, Any]] = [{**trial.row(), **trial.results()} for trial in trials]
    claims = judge_claims(study, rows)
    write_json(
        folder / "ablation.json",
        {**read_json(folder / "ablation.json"), "claims": claims, "runs": rows},
    )
    return write_report(folder, study, rows, join_command(["python", *sys.argv]))


if __name__ == "__main__":
    argv = [arg for arg in sys.argv if not arg.lstrip("-").startswith("config.")]
    app.run(main, argv=argv)
