"""The ablations of the paper: each study compares several arms over several seeds, in one command.

    python experiments/ablations.py --list
    python experiments/ablations.py --study=positions --data=/data/cifar10 --workdir=runs/positions
    ... [--results=FOLDER] [--data=tfds] [--seeds=3] [--parallel=1] [--config.<field>=value ...]
    python experiments/ablations.py --study=positions --size=smoke --workdir=/tmp/positions
    python experiments/ablations.py --report --results=FOLDER
    ... --study=positions --data=/data/cifar10 --workdir=runs/positions --again=3
    ... --study=class_token --data=/data/cifar10 --workdir=runs/class_token --inside=class_token

    class_token   class token or mean of the patches; learning rates    D.3, Figure 9
    positions     kind and place of position embeddings                 D.4, Table 8
    shape         depth, width, MLP, patches: against compute           D.2, Figure 8
    optimizer     Adam or SGD for ResNets                               D.1, Table 7
    axial         axial attention in a ViT and in a ResNet              D.6, Figure 13
    hybrid        ViT, hybrid and ResNet at equal compute               4.4, Figure 5, Table 6
    crop          three crop policies in fine-tuning                    B.1.1
    data_size     ViT, hybrid and ResNet on shares of the training set  4.3, Figure 4
    pretraining_size   the same after pre-training on more or less data 4.3, Figures 3 and 4
    self_supervision   masked patches, MAE and labels, then few labels  4.6, B.1.2
    transfer      pre-trained or random weights, by number of labels    4.2
    resolution    fine-tuning at higher resolution; positions           3.2

1. Each arm gets its own learning rate. It is trained with seed 0 at 1/3, 1 and 3 times the rate of
  its config, without a tenth of the training set. The rate with the highest accuracy on this tenth
  wins; of equals, the smaller one. While the smallest or the largest rate is the best, or equals the
  best, one more rate beyond it is tried, four times at most. The test set is not opened.
  Some arms fine-tune a start: a pre-training run of the study. It is trained once for each seed, at
  the learning rate of its config, as in the paper, which compares rates only in fine-tuning. Its
  row has the 5-shot accuracy of its features on the data of the arms. Rates are tried from seed 0.
2. Each arm is trained with each seed at its winning rate, on the whole training set. It is tested
  once, at its end, and measured by few-shot regression on its frozen features. Seed n of an arm
  fine-tunes seed n of its start. Only the starts that the remaining trials need are trained.
3. A claim of the paper holds if the 95 % interval of its value over the seeds is above 0; see
  `ablations/report.py`. At least three seeds are needed.

Each finished trial is a row of `trials.csv` in `--results` (default: `--workdir`); `study.json`
contains the plan. A trial that has a row is not run again: to continue a study on another machine,
copy these two files. They contain no paths of the machine. `ablation.md` and `ablation.png` are made
from them alone; `--report` makes them again, with the same bytes.

Each trial is a process with its own folder in `--workdir`, `<arm>/rate_<rate>`, `<arm>/seed_<n>` or `<start>/seed_<n>`;
its output is in `log.txt`. If interrupted, rerun the same command to resume. You can increase
`--seeds` later. Use other folders for another study. SIGTERM is passed on to the trials; when they
have saved, the exit code is 75. A trial that diverges is reported, and its arm gets no mean.
`--only=<arm>/seed_<n>`, `--only=<arm>/rate_<rate>` or `--only=<start>/seed_<n>` performs a single
trial in this process, without a row; the start of an arm must be in `--workdir`. `--rate` sets the
learning rate of a seed whose rate is not in `--results`.
`--again=N` runs a random sample of N tested trials again, with their starts, in `<workdir>/again`,
and compares weights and accuracies with the rows; if one differs, the exit code is 1.
`--inside=<arm or start>` measures its trained models, one for each seed: attention distance by
depth, similarity of the position embeddings, and filters (Figure 7). The rows are in `inside.csv`
in `--results`; the models without rows must be in `--workdir`.
`--config.<field>=value` changes a field in every arm, except the fields that the arms differ in.
`--parallel` works as in `sweep.py`. On two CPU cores, use --parallel=2 with one thread each: set
OMP_NUM_THREADS=1, TF_NUM_INTRAOP_THREADS=1 and TF_NUM_INTEROP_THREADS=1. The number of threads
changes the last bits of the weights, so `--again` needs that of the rows.

Time: `--list` prints an estimate for two CPU cores. No GPU has been measured. With `--size=smoke`
(tiny models on scikit-learn's digits) a trial takes seconds, and the start of TensorFlow.
"""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import command_line.native_logs

from ablations.arms import SIZES, Arm, Config, Study
from ablations.inside import FILE, look_inside
from ablations.inside_page import make_inside_verdicts
from ablations.plan import change_study, make_plan, show_command, study_of
from ablations.rates import find_rate
from ablations.report import write_report
from ablations.rows import Results
from ablations.runs import renew_positions, train_and_measure, train_and_validate, train_start
from ablations.schedule import Schedule
from ablations.studies import STUDIES, make_study
from absl import app, flags
from command_line.exit_codes import exit_on_error
from command_line.trials import Pool, Trial, check_plan, claim, data_of, leave_accelerators

from keras_vit.drawing import check_can_draw
from keras_vit.weights.secrets import join_command

_STUDY = flags.DEFINE_string("study", None, f"One of: {', '.join(STUDIES)}.")
_WORKDIR = flags.DEFINE_string("workdir", None, "Folder of the runs.")
_RESULTS = flags.DEFINE_string(
    "results", None, "Folder of trials.csv, study.json and the report. Default: --workdir."
)
_SIZE = flags.DEFINE_string("size", "cifar10", f"One of: {', '.join(SIZES)}.")
_DATA = flags.DEFINE_string(
    "data", None, "CIFAR-10: a folder with train/<class> and test/<class>, or tfds."
)
_SEEDS = flags.DEFINE_integer(
    "seeds", None, "Runs per arm. Default: as in --results; of a new study 3, with --size=smoke 2."
)
_PARALLEL = flags.DEFINE_integer("parallel", 1, "Maximum number of parallel runs.")
_ONLY = flags.DEFINE_string(
    "only",
    None,
    "Perform a single trial: <arm>/seed_<n>, <arm>/rate_<rate> or <start>/seed_<n>.",
)
_RATE = flags.DEFINE_float(
    "rate", None, "Learning rate of --only=<arm>/seed_<n>. Default: the winner in --results."
)
_AGAIN = flags.DEFINE_integer("again", None, "Run a sample of tested trials again; compare them.")
_INSIDE = flags.DEFINE_string(
    "inside", None, "Look inside the trained models of this arm or start: Figure 7."
)
_REPORT = flags.DEFINE_bool("report", False, "Make the report from --results alone, and exit.")
_LIST = flags.DEFINE_bool("list", False, "List the studies and exit.")

OVERRIDES = [arg for arg in sys.argv if arg.lstrip("-").startswith("config.")]


@exit_on_error()
def main(_: list[str]) -> None:
    """Runs the study in its folder, or the rest of it."""
    if _LIST.value:
        print("\n".join(map(describe, STUDIES)))
        return
    if _REPORT.value:
        print(report_alone())
        return
    plan = read_flags()
    schedule = make_schedule(plan)
    if _ONLY.value is not None:
        run_one(schedule, _ONLY.value)
        return
    check_can_draw()
    if _INSIDE.value is None:
        leave_accelerators()
    plan = claim_folders(schedule, plan)
    if _INSIDE.value is not None:
        print(measure_inside(schedule, _INSIDE.value, plan))
        return
    if _AGAIN.value is not None:
        pool = Pool(_PARALLEL.value, schedule.folder, "ablation")  # records nothing
        pool.catch_signals()
        if not schedule.repeat(pool, _AGAIN.value):
            sys.exit(1)
        return
    pool = Pool(_PARALLEL.value, schedule.folder, "ablation", schedule.record)
    pool.catch_signals()
    try:
        schedule.run_all(pool, plan["seeds"])
    finally:
        page = make_report(schedule.results, schedule.study, plan)
    print(page.read_text(encoding="utf-8"))
    print(page, flush=True)


def describe(name: str) -> str:
    """Returns the line of a study in `--list`, with its estimated time on two CPU cores."""
    study = make_study(name, "cifar10", {"kind": "tfds", "name": "cifar10"})
    seconds = sum(
        (LEAST_RATES * (not arm.rate_of) + SEEDS) * estimate_seconds(arm.config)
        for arm in study.arms.values()
    ) + sum(SEEDS * estimate_seconds(start) for start in study.starts.values())
    count = len(study.starts)
    starts = f" and {count} start{'s' * (count > 1)}" * bool(count)
    return (
        f"{name:17}{study.title} ({study.source}): {len(study.arms)} arms{starts}, "
        f"{seconds / 3600:.1f} h for the rates and {SEEDS} seeds"
    )


def estimate_seconds(config: Any) -> float:
    """Returns the time of a run on two cores, as half of that of two parallel runs."""
    images = config.run.batch_size * config.run.loop.total_steps
    each = Arm(title="", config=config).macs / MACS_PER_SECOND + SECONDS_PER_IMAGE
    drawing = SECONDS_PER_FRACTAL * (config.run.data.kind == "fractals")
    return images * (each + drawing) + SECONDS_PER_RUN


# On two cores, in all parallel trials together: 375 images per second at 33.3 million MACs
# (experiments/README.md), and 2500 with a negligible model. That is 885 per second for the base; with
# one thread a trial of the base took 73 s of processor time for 200 steps, start included.
SECONDS_PER_IMAGE = 1 / 2500
MACS_PER_SECOND = 33.3e6 / (1 / 375 - SECONDS_PER_IMAGE)
# of fractals_cifar10.py, 1500 steps in 11 minutes: 290 images per second instead of 375
SECONDS_PER_FRACTAL = 1 / 290 - 1 / 375
SECONDS_PER_RUN = 20  # start, compilation, evaluation: half of that of each of two parallel trials
LEAST_RATES, SEEDS = 3, 3  # more rates are tried if the winner is at the edge


def read_flags() -> dict[str, Any]:
    """Returns the plan that the flags ask for, without the hash of the data.

    Raises:
        ValueError: Lists all faults of the flags.
    """
    seeds = _find_seeds() if _SEEDS.value is None else _SEEDS.value
    faults = {
        f"`--study` is missing: --study=NAME, one of {', '.join(STUDIES)}.": not _STUDY.value,
        "`--workdir` is missing: name the folder of the study.": not _WORKDIR.value,
        f"`--seeds` must be at least 1. Received: {seeds}.": seeds < 1,
        f"`--parallel` must be at least 1. Received: {_PARALLEL.value}.": _PARALLEL.value < 1,
        f"`--again` must be at least 1. Received: {_AGAIN.value}.": (
            _AGAIN.value is not None and _AGAIN.value < 1
        ),
        "`--data` is missing: --data=/data/cifar10, a folder with train/<class> and test/<class>, or --data=tfds.": (
            _SIZE.value == "cifar10" and not _DATA.value
        ),
        "`--data` must not be given with --size=smoke, which trains on scikit-learn's digits.": (
            _SIZE.value == "smoke" and _DATA.value
        ),
    }
    if found := [message for message, is_present in faults.items() if is_present]:
        raise ValueError("\n".join(found))
    return make_plan(_STUDY.value, _SIZE.value, _parse_data(), _parse_changes(), seeds=seeds)


def _find_seeds() -> int:
    """Returns the number of seeds of the study in the folder, or of a new one."""
    folder = _RESULTS.value or _WORKDIR.value
    results = Results(Path(folder).expanduser()) if folder else None
    there = results.plan().get("seeds") if results and results.rows() else None
    return there or (2 if _SIZE.value == "smoke" else SEEDS)


def _parse_data() -> Mapping[str, str]:
    if not _DATA.value:
        return {}
    if _DATA.value == "tfds" or _DATA.value.startswith("tfds:"):
        return {
            "kind": "tfds",
            "name": _DATA.value.removeprefix("tfds").removeprefix(":") or "cifar10",
        }
    return {"kind": "image_folder", "name": _DATA.value}


def _parse_changes() -> Mapping[str, str]:
    pairs = [arg.lstrip("-").removeprefix("config.").partition("=") for arg in OVERRIDES]
    return {name: text for name, _, text in pairs}


def make_schedule(plan: Mapping[str, Any]) -> Schedule:
    """Returns the trials of the study, in the folders that the flags name."""
    folder = Path(_WORKDIR.value).expanduser()
    asked = [f"--study={_STUDY.value}", f"--size={_SIZE.value}", *OVERRIDES]
    asked += [f"--data={_DATA.value}"] if _DATA.value else []
    return Schedule(
        study=change_study(_STUDY.value, _SIZE.value, _parse_data(), _parse_changes()),
        folder=folder,
        results=Results(Path(_RESULTS.value).expanduser() if _RESULTS.value else folder),
        command=(sys.argv[0], *asked),
        shown_command=tuple(show_command(plan)),
    )


def claim_folders(schedule: Schedule, plan: Mapping[str, Any]) -> Mapping[str, Any]:
    """Writes the plan into both folders, or checks that the plans there are the same.

    Returns:
        The plan with the hash of the data.
    """
    path, study = schedule.folder / "ablation.json", schedule.study
    # first without the data, which may be missing or take long to hash
    check_plan(path, plan, free=("seeds", "data_sha256"))
    schedule.results.check_plan(plan, free=("seeds", "data_sha256"))
    runs = [arm.config.run for arm in study.arms.values()]
    runs += [start.run for start in study.starts.values()]
    plan = {**plan, "data_sha256": data_of(*runs)}
    schedule.results.check_plan(plan)
    claim(path, plan, free=("seeds",))
    if _AGAIN.value is None:
        schedule.results.claim(plan)
    return plan


def run_one(schedule: Schedule, name: str) -> None:
    """Performs a single trial in this process.

    Args:
        schedule: The trials of the study.
        name: <arm>/seed_<n>, <arm>/rate_<rate> or <start>/seed_<n>.

    Raises:
        ValueError: If there is no such trial, the learning rate of the arm is not known, or the
            weights of its start are not in the folder.
    """
    study = schedule.study
    arm, _, last = name.partition("/")
    kind, _, number = last.partition("_")
    is_seed = kind == "seed" and number.isdecimal()
    if arm in study.starts and is_seed:
        rate = study.starts[arm].run.optimizer.learning_rate
        trial = schedule.make_trial(arm, "start", rate, int(number))
        train_start(schedule.make_config(trial), study.find_downstream(arm), trial.folder)
        return
    if arm not in study.arms or not (is_seed or (kind == "rate" and _is_rate(number))):
        starts = f", or of a start, {', '.join(study.starts)}" * bool(study.starts)
        raise ValueError(
            "`--only` must be <arm>/seed_<n>, <arm>/rate_<rate> or <start>/seed_<n>, with an arm "
            f"of {', '.join(study.arms)}{starts}. Received: {name!r}."
        )
    if kind == "rate":
        trial = schedule.make_trial(arm, "rate", float(number))
        train_and_validate(prepare(schedule, trial), trial.folder)
        return
    rate = find_rate(study, schedule.results.rows(), arm) if _RATE.value is None else _RATE.value
    if rate is None:
        raise ValueError(
            f"The learning rate of {arm} is not known: {schedule.results.table} has not all rows "
            "of its rates. Run the study without `--only` first, or pass `--rate`."
        )
    trial = schedule.make_trial(arm, "seed", rate, int(number))
    train_and_measure(prepare(schedule, trial), trial.folder)


def measure_inside(schedule: Schedule, name: str, plan: Mapping[str, Any]) -> str:
    """Looks inside the trained models of an arm or of a start, and returns the table of verdicts."""
    findings = look_inside(schedule, name, plan["seeds"])
    return f"{make_inside_verdicts(findings, plan)}\n\n{schedule.results.folder / FILE}"


def prepare(schedule: Schedule, trial: Trial) -> Config:
    """Returns the config of a trial of an arm, whose weights exist if it names some.

    Raises:
        ValueError: If the weights are not in the folder of the start.
    """
    name, seed = trial.tries["arm"], trial.tries["seed"]
    arm, config = schedule.study.arms[name], schedule.make_config(trial)
    if not arm.start:
        return config
    weights = schedule.find_start_weights(name, seed)
    if not weights.exists():
        raise ValueError(
            f"There is no file {weights}, which {name} fine-tunes. Run --only={arm.start}/seed_{seed} "
            "first."
        )
    if arm.new_positions:
        renew_positions(config, weights)
    return config


def _is_rate(text: str) -> bool:
    try:
        return 0 < float(text) < float("inf")
    except ValueError:
        return False


def report_alone() -> Path:
    """Makes the report from the rows and the plan alone, and returns the path of the page."""
    folder = _RESULTS.value or _WORKDIR.value
    if not folder:
        raise ValueError("`--results` is missing: name the folder of trials.csv and study.json.")
    results = Results(Path(folder).expanduser())
    plan = results.plan()
    if not plan:
        raise ValueError(f"There is no study in {folder}: it has no study.json.")
    check_can_draw()
    return make_report(results, study_of(plan), plan)


def make_report(results: Results, study: Study, plan: Mapping[str, Any]) -> Path:
    """Writes the report on the rows so far, and returns the path of the page."""
    command = join_command(["python", *show_command(plan), f"--seeds={plan['seeds']}"])
    return write_report(results.folder, study, results.rows(), plan, command)


if __name__ == "__main__":
    argv = [arg for arg in sys.argv if not arg.lstrip("-").startswith("config.")]
    app.run(main, argv=argv)
