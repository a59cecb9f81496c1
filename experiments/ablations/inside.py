"""Inside the trained models of an arm or of a start: attention distance by depth, similarity of the
position embeddings, principal components of the filters.

What lives here: the measurement, and its file, `inside.csv` in the folder of the results. What does
not: the tables, verdicts and pictures that are made from this file alone (`ablations/inside_page.py`).

Source: arXiv:2010.11929, section 4.5, Figures 7 and 11, D.7.
"""

import csv
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import keras
import numpy as np
from command_line.trials import read_json

from ablations.arms import Config, StartConfig
from ablations.report import select_tested
from ablations.rows import Row
from ablations.runs import RESULT
from ablations.schedule import Schedule
from keras_vit.analyze import filter_components, position_similarity, summarize_attention
from keras_vit.data.pipeline import evaluation_batches
from keras_vit.suggestions import did_you_mean
from keras_vit.train import RunConfig
from keras_vit.train.config import row_of
from keras_vit.train.inputs import evaluation_transforms, make_sources
from keras_vit.train.new_head import build_on_trunk
from keras_vit.writing import write_csv

FILE = "inside.csv"
COLUMNS = ("arm", "seed", "state_sha256", "quantity", "index", "values")
DISTANCE, SIMILARITY = "attention_distance_px", "position_similarity"
FILTER, EXPLAINED = "filter", "explained_variance"
NUM_IMAGES = 128  # D.7
NUM_COMPONENTS = 28  # Figure 7, left


class Finding(NamedTuple):
    """A row of `inside.csv`.

    Attributes:
        arm: Name of the arm or start.
        seed: Seed of its run.
        state_sha256: That of the run's row in `trials.csv`.
        quantity: `DISTANCE`, `SIMILARITY`, `FILTER` or `EXPLAINED`.
        index: Layer of an attention distance, patch of a similarity, number of a filter; from 0.
        values: Mean distance in pixels of each head; cosine to the position embedding of each
            patch, row by row; P x P x 3 values of a filter; shares of the variance.
    """

    arm: str
    seed: int
    state_sha256: str
    quantity: str
    index: int
    values: list[float]


def look_inside(schedule: Schedule, name: str, seeds: int) -> list[Finding]:
    """Measures the trained models of an arm or of a start, and writes `inside.csv`. The rows that it
    already has of these runs, and those of other arms, are kept: only the runs without rows need
    their weights, for example those of seeds that were added later, on another machine.

    Args:
        schedule: The study, the folder of its runs, and its results.
        name: Name of the arm or of the start.
        seeds: Number of seeds of the study.

    Returns:
        The findings of `name`.

    Raises:
        ValueError: If there is no such arm, a seed has no row in `trials.csv` yet, the weights of a
            run to measure are not those of its row, or the model has no attention.
    """
    study = schedule.study
    if name not in (*study.arms, *study.starts):
        known = [*study.arms, *study.starts]
        raise ValueError(
            f"The study has no arm and no start {name!r}.{did_you_mean(name, known)} It has: "
            f"{', '.join(known)}."
        )
    trained = _select_rows(schedule, name, seeds)
    if missing := [seed for seed in range(seeds) if seed not in trained]:
        raise ValueError(
            f"{name} has no finished run with seed {missing[0]}. Run the study without `--inside` "
            "first."
        )
    config = study.arms[name].config if name in study.arms else study.starts[name]
    data = study.arms[name].config.run if name in study.arms else study.find_downstream(name)
    path = schedule.results.folder / FILE
    known, found = read_findings(path), []
    for seed, row in sorted(trained.items()):
        run = (name, seed, row["state_sha256"])
        measured = [finding for finding in known if finding[: len(run)] == run]
        found += measured or _measure(name, config, data, schedule.folder, row)
    others = [finding for finding in known if finding.arm != name]
    order = [*study.arms, *study.starts]
    rows = sorted([*others, *found], key=lambda row: order.index(row.arm))
    write_csv(path, COLUMNS, [[*row[:-1], json.dumps(row.values)] for row in rows])
    return found


def read_findings(path: Path) -> list[Finding]:
    """Returns the rows of a file; none if it is absent.

    Raises:
        ValueError: If the file has other columns, or the rows of an array are not complete and in
            their order.
    """
    if not path.exists():
        return []
    with open(path, encoding="utf-8", newline="") as file:
        reader = csv.DictReader(file)
        if tuple(reader.fieldnames or ()) != COLUMNS:
            raise ValueError(
                f"{path} must have the columns {', '.join(COLUMNS)}. Found: "
                f"{', '.join(reader.fieldnames or ())}. Restore the file."
            )
        findings = [
            Finding(
                arm=line["arm"],
                seed=int(line["seed"]),
                state_sha256=line["state_sha256"],
                quantity=line["quantity"],
                index=int(line["index"]),
                values=json.loads(line["values"]),
            )
            for line in reader
        ]
    numbers: dict[tuple[str, int, str], int] = {}
    for finding in findings:
        array = (finding.arm, finding.seed, finding.quantity)
        numbers[array] = numbers.get(array, -1) + 1
        if finding.index != numbers[array]:
            raise ValueError(
                f"{path} must have the rows of {finding.quantity} of {finding.arm}, seed "
                f"{finding.seed}, in their order: {finding.index} follows where {numbers[array]} "
                "belongs. Restore the file."
            )
    return findings


def check_runs(path: Path, findings: Sequence[Finding], rows: Sequence[Row]) -> None:
    """Checks that findings are those of the runs of `trials.csv`.

    Args:
        path: The file of the findings, for the message.
        findings: Its rows.
        rows: The rows of `trials.csv`.

    Raises:
        ValueError: If a run has no row, or was repeated with other weights since.
    """
    states = {row["state_sha256"] for row in rows}
    if others := [finding for finding in findings if finding.state_sha256 not in states]:
        raise ValueError(
            f"{path} describes a run of {others[0].arm} with seed {others[0].seed} that trials.csv "
            f"does not have. Run the study with --inside={others[0].arm} again."
        )


def measure_model(model: keras.Model, images: Any, *, learns_positions: bool) -> dict[str, Any]:
    """Returns the arrays of each quantity of a model.

    Args:
        model: A ViT.
        images: As `images` of `summarize_attention`.
        learns_positions: Whether its position embeddings are trained. Others say nothing.

    Returns:
        By quantity: distances (L, A) in pixels, similarities (N, N), filters (K, P * P * 3), and
        one row of K shares.
    """
    filters = filter_components(model, NUM_COMPONENTS)
    arrays = {
        DISTANCE: summarize_attention(model, images).distance_px,
        FILTER: filters.components.reshape(len(filters.components), -1),
        EXPLAINED: filters.explained[None],
    }
    if learns_positions:
        similarity = position_similarity(model)
        patches = similarity.shape[0] * similarity.shape[1]
        arrays[SIMILARITY] = similarity.reshape(patches, patches)
    return arrays


def _select_rows(schedule: Schedule, name: str, seeds: int) -> dict[int, Row]:
    """Returns the rows of the finished runs by seed."""
    rows = schedule.results.rows()
    if name in schedule.study.arms:
        rows = select_tested(schedule.study, rows, seeds)
    else:
        rows = [row for row in rows if row["kind"] == "start" and row["seed"] < seeds]
    return {row["seed"]: row for row in rows if row["arm"] == name and not row["diverged"]}


def _measure(
    name: str, config: Config | StartConfig, run: RunConfig, folder: Path, row: Mapping[str, Any]
) -> Iterator[Finding]:
    folder = folder / name / f"seed_{row['seed']}"
    measured = read_json(folder / RESULT).get("state_sha256")
    if measured != row["state_sha256"]:
        raise ValueError(
            f"{folder} does not hold the run of the row of {name} with seed {row['seed']}. Name the "
            "folder of that run with `--workdir`, or run the study again."
        )
    model = build_on_trunk(
        row_of(config.model, config.variant),
        folder / "model.npz",
        config.image_size,
        1,
        **config.model_options,
    )
    _, test = make_sources(run.data, run.seed)
    count = min(test.num_examples, NUM_IMAGES)
    chosen = np.sort(np.random.default_rng(0).permutation(test.num_examples)[:count])
    images = evaluation_batches(
        test.subset(chosen),
        evaluation_transforms(run.data, config.image_size),
        batch_size=min(count, 64),
    )
    learns_positions = config.model_options.get("position_embedding", "").startswith("learned")
    arrays = measure_model(model, images, learns_positions=learns_positions)
    for quantity, array in arrays.items():
        for index, values in enumerate(array):
            rounded = [round(float(value), 4) for value in values]
            yield Finding(name, row["seed"], row["state_sha256"], quantity, index, rounded)
