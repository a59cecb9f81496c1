"""The plan of a study: what distinguishes its results from others, without paths of the machine.

What lives here: a study with the changes of the command line; its plan, as stored in `study.json`;
the study and the command that belong to a plan. What does not: the files (`ablations/rows.py`), and
the flags (`ablations.py`).

A plan contains the configs of all arms and starts. Where they name an image folder, the plan names
`DATA_FOLDER`: the hash of the data identifies them.
"""

from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

from command_line.trials import find_plan_differences

import keras_vit
from ablations.arms import Study
from ablations.report import find_differences
from ablations.studies import make_study
from keras_vit.train.recipes import with_fields

DATA_FOLDER = "/data/cifar10"
SCRIPT = "experiments/ablations.py"
OURS = {
    "run.seed": "--seeds",
    "run.data.kind": "--data",
    "run.data.name": "--data",
    "run.data.held_out": "the study",
    "weights": "--workdir",
}


def change_study(
    name: str, size: str, data: Mapping[str, str], changes: Mapping[str, str]
) -> Study:
    """Returns a study with changes of the command line applied to every arm.

    Args:
        name, size, data: As of `make_study`.
        changes: Changed fields by their dotted names.

    Raises:
        ValueError: If a change concerns a field that other flags set or that the arms differ in.
    """
    arms = make_study(name, size, data).arms
    varied = {field for values in find_differences(arms).values() for field in values}
    wrong = [f"`{field}` is set by {OURS[field]}." for field in changes if field in OURS]
    wrong += [
        f"`{change}` must not be changed: the arms differ in it."
        for change in changes
        if any(
            f"{field}.".startswith(f"{change}.") or f"{change}.".startswith(f"{field}.")
            for field in varied
        )
    ]
    wrong += (
        ["`run.data.test` must not be empty: every arm is tested."]
        if changes.get("run.data.test") == ""
        else []
    )
    if wrong:
        raise ValueError("\n".join(wrong))
    study = make_study(name, size, data, changes)
    arms = {
        name: replace(arm, config=with_fields(arm.config, changes))
        for name, arm in study.arms.items()
    }
    return replace(study, arms=arms)


def make_plan(
    name: str, size: str, data: Mapping[str, str], changes: Mapping[str, str], *, seeds: int
) -> dict[str, Any]:
    """Returns the plan of a study, without the hash of the data.

    Args:
        name, size, data, changes: As of `change_study`.
        seeds: Runs per arm.
    """
    if data.get("kind") == "image_folder":
        data = {**data, "name": DATA_FOLDER}
    study = change_study(name, size, data, changes)
    return {
        "study": name,
        "size": size,
        "version": keras_vit.__version__,
        "seeds": seeds,
        "data": dict(data),
        "changes": dict(changes),
        # None without starts, as in the plans of studies that ran before there were several
        "starts": {name: asdict(start) for name, start in study.starts.items()} or None,
        "arms": {name: asdict(arm.config) for name, arm in study.arms.items()},
    }


def study_of(plan: Mapping[str, Any]) -> Study:
    """Returns the study of a stored plan.

    Raises:
        ValueError: If this version of the package has other configs under its name.
    """
    named = plan["study"], plan["size"], plan["data"], plan["changes"]
    free = ("version", "data_sha256")
    if lines := find_plan_differences(plan, make_plan(*named, seeds=plan["seeds"]), free=free):
        raise ValueError(
            "\n".join(
                [
                    f"The study was run with version {plan['version']} of keras_vit, whose configs "
                    "differ from those of this version:",
                    *lines,
                    "Use that version.",
                ]
            )
        )
    return change_study(*named)


def show_command(plan: Mapping[str, Any]) -> list[str]:
    """Returns the arguments of `python` that run the study, with example folders."""
    data = plan["data"]
    shown = {"image_folder": DATA_FOLDER, "tfds": f"tfds:{data.get('name')}"}
    return [
        SCRIPT,
        f"--study={plan['study']}",
        f"--size={plan['size']}",
        *([f"--data={shown[data['kind']]}"] if data else []),
        f"--workdir=runs/{plan['study']}",
        *(f"--config.{name}={text}" for name, text in plan["changes"].items()),
    ]
