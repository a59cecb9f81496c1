"""Inside the trained models of a study: the numbers, their file, and what the page says of them."""

import csv
import json
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import keras
import numpy as np
import pytest

pytest.importorskip("tensorflow")
pytest.importorskip("sklearn")
pytest.importorskip("matplotlib")
pytest.importorskip("psutil")

ROOT = Path(__file__).parents[1]
sys.path.append(str(ROOT / "experiments"))  # as for a script of this folder

from ablations.inside import (  # noqa: E402
    COLUMNS,
    FILE,
    NUM_IMAGES,
    Finding,
    look_inside,
    measure_model,
    read_findings,
)
from ablations.inside_page import (  # noqa: E402
    PAPER_UNIFORM,
    grow_with_depth,
    make_inside,
    make_inside_verdicts,
    prefer_axes,
    prefer_near,
)
from ablations.page import write_results  # noqa: E402
from ablations.plan import make_plan  # noqa: E402
from ablations.rates import make_grid  # noqa: E402
from ablations.rows import COLUMNS as ROW_COLUMNS  # noqa: E402
from ablations.rows import Results  # noqa: E402
from ablations.schedule import Schedule  # noqa: E402
from ablations.studies import make_study  # noqa: E402

import keras_vit  # noqa: E402
from keras_vit.analyze import attention_maps, mean_distance  # noqa: E402
from keras_vit.data import sources  # noqa: E402
from keras_vit.data.pipeline import evaluation_batches  # noqa: E402
from keras_vit.train.config import row_of  # noqa: E402
from keras_vit.variants import VIT_VARIANTS  # noqa: E402
from keras_vit.writing import write_json  # noqa: E402

pytestmark = pytest.mark.tensorflow

SIDE = 6
PLACES = [divmod(patch, SIDE) for patch in range(SIDE * SIDE)]


def similarity_of(rule) -> np.ndarray:
    """(N, N): the rule of the rows and columns between two patches."""
    return np.array(
        [[rule(abs(r - s), abs(c - d)) for s, d in PLACES] for r, c in PLACES], dtype=float
    )


def test_the_growth_of_the_distance_is_that_from_the_first_to_the_last_layer():
    assert grow_with_depth(np.array([[1.0, 2.0], [9.0, 9.0], [4.0, 6.0]])) == 3.5
    assert grow_with_depth(np.array([[4.0, 6.0], [1.0, 2.0]])) == -3.5


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        (lambda r, c: -np.hypot(r, c), 1.0),
        (lambda r, c: np.hypot(r, c), -1.0),
        (lambda r, c: -((r * r + c * c) ** 2), 1.0),  # the order counts, and not the shape
    ],
)
def test_near_patches_are_similar_if_the_ranks_agree(rule, expected: float):
    similarity = similarity_of(rule)
    np.fill_diagonal(similarity, 7.0)  # a patch and itself do not count
    assert prefer_near(similarity) == pytest.approx(expected)


def test_similarities_without_order_prefer_no_distance():
    noise = np.random.default_rng(0).normal(size=(SIDE**2, SIDE**2))
    assert abs(prefer_near(noise)) < 0.1


def test_rows_and_columns_are_compared_with_other_patches_at_the_same_distance():
    on_axis = similarity_of(lambda r, c: 0.75 if r == 0 or c == 0 else 0.25)
    assert prefer_axes(on_axis) == pytest.approx(0.5)
    assert prefer_axes(1 - on_axis) == pytest.approx(-0.5)
    # what depends on the distance alone prefers no direction
    assert abs(prefer_axes(similarity_of(lambda r, c: np.exp(-np.hypot(r, c) / 3)))) < 0.03
    # by hand: at a rounded distance of 3 the pairs are (0, 3), (1, 3) and (2, 2), and turned
    rows = similarity_of(lambda r, c: 1.0 if r == 0 and c == 3 else 0.0)
    axis = 2 * SIDE * (SIDE - 3)  # as many along the rows as along the columns
    assert prefer_axes(rows) == pytest.approx(0.5 / (SIDE - 3))
    assert np.isclose(rows.sum(), axis)


def test_the_border_is_not_taken_for_rows_and_columns():
    """Pairs in a row or column at a large distance lie mostly at the border."""
    ring = np.array([min(r, c, SIDE - 1 - r, SIDE - 1 - c) for r, c in PLACES])
    at_border = (ring[:, None] == 0) & (ring[None, :] == 0)
    for similarity in (1.0 * at_border, -1.0 * np.abs(ring[:, None] - ring)):
        assert prefer_axes(similarity) == pytest.approx(0)
        assert prefer_axes(
            similarity + similarity_of(lambda r, c: r == 0 or c == 0)
        ) == pytest.approx(1)


def test_a_model_is_measured_as_by_hand():
    row = replace(VIT_VARIANTS["ViT_Ti16"], patch_size=4, width=16, depth=2, num_heads=2, mlp_dim=8)
    model = keras_vit.application(replace(row, name="Small"))(
        weights=None, input_shape=(16, 16, 3), classes=3, position_embedding="learned_1d"
    )
    generator = np.random.default_rng(0)
    for layer in model.layers:
        layer.set_weights([generator.normal(size=each.shape) for each in layer.get_weights()])
    images = generator.uniform(-1, 1, (3, 16, 16, 3)).astype("float32")
    arrays = measure_model(model, images, learns_positions=True)
    maps = attention_maps(model, images)
    expected = [mean_distance(scores, (4, 4), (4.0, 4.0), 1).mean(axis=0) for scores in maps]
    np.testing.assert_allclose(arrays["attention_distance_px"], expected, rtol=1e-4)
    table = model.get_layer("posembed_input").get_weights()[0][0, 1:]
    length = np.linalg.norm(table, axis=1)
    np.testing.assert_allclose(
        arrays["position_similarity"], table @ table.T / np.outer(length, length), atol=1e-5
    )
    filters = arrays["filter"]
    assert filters.shape == (15, 48)  # as many as 16 filters have
    np.testing.assert_allclose(filters @ filters.T, np.eye(15), atol=1e-6)
    assert arrays["explained_variance"].shape == (1, 15)
    assert arrays["explained_variance"].sum() == pytest.approx(1.0)
    assert "position_similarity" not in measure_model(model, images, learns_positions=False)


# ---- a study


def make_study_folder(folder: Path, seeds: int = 3) -> tuple[Schedule, dict]:
    """Results of the smoke study of the class token, and the runs of one of its arms: models with
    random weights.
    """
    plan = {**make_plan("class_token", "smoke", {}, {}, seeds=seeds), "data_sha256": "0"}
    study, results = make_study("class_token", "smoke"), Results(folder / "results")
    results.claim(plan)
    config = study.arms["class_token"].config
    rates = make_grid(config.run.optimizer.learning_rate)
    empty = dict.fromkeys(ROW_COLUMNS)
    for rate, accuracy in zip(rates, (0.3, 0.4, 0.2), strict=True):
        tried = {"arm": "class_token", "kind": "rate", "learning_rate": rate, "seed": 0}
        results.record({**empty, **tried, "held_out_accuracy": accuracy, "command": "python"})
    for seed in range(seeds):
        tried = {"arm": "class_token", "kind": "seed", "learning_rate": rates[1], "seed": seed}
        state = f"{seed:064x}"
        measured = {"test_accuracy": 0.5, "fewshot_accuracy": 0.4, "state_sha256": state}
        measured |= {"images_per_second": 10.0, "parameters": 1, "shots": 10, "test_images": 360}
        results.record({**empty, **tried, **measured, "command": "python"})
        run = folder / "runs" / "class_token" / f"seed_{seed}"
        run.mkdir(parents=True)
        write_json(run / "measured.json", {"state_sha256": state})
        keras.utils.set_random_seed(seed)
        size = config.image_size
        model = keras_vit.application(row_of(config.model, config.variant))(
            weights=None, input_shape=(size, size, 3), classes=10, **config.model_options
        )
        keras_vit.save_checkpoint(model, run / "model.npz")
    schedule = Schedule(
        study=study, folder=folder / "runs", results=results, command=(), shown_command=()
    )
    return schedule, plan


def test_a_study_is_looked_into_and_shown(tmp_path: Path, monkeypatch):
    schedule, plan = make_study_folder(tmp_path)
    plan = {**plan, "size": "cifar10"}
    shown, drawn = [], []

    def make_batches(source, *arguments, **options):
        shown.append((source.name, source.num_examples))
        drawn.append([source.locate(index) for index in range(source.num_examples)])
        return evaluation_batches(source, *arguments, **options)

    monkeypatch.setattr("ablations.inside.evaluation_batches", make_batches)
    path = tmp_path / "results" / FILE
    other = Finding("gap", 0, "5", "attention_distance_px", 0, [1.0, 2.0])
    with open(path, "w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerows([COLUMNS, [*other[:-1], json.dumps(other.values)]])
    empty = path.read_bytes()
    found = look_inside(schedule, "class_token", 3)
    assert shown == [("digits test", NUM_IMAGES)] * 3
    whole = sources.digits("test")  # folders are in the order of their classes, so a draw is needed
    places = [whole.locate(index) for index in range(whole.num_examples)]
    assert drawn[0] == drawn[1] == drawn[2] != places[:NUM_IMAGES]
    assert drawn[0] == [place for place in places if place in drawn[0]]
    assert read_findings(path) == [*found, other]  # in the order of the arms
    config = schedule.study.arms["class_token"].config
    row = row_of(config.model, config.variant)
    patches, filters = (config.image_size // row.patch_size) ** 2, min(28, row.width - 1)
    of = {
        quantity: [each for each in found if each.quantity == quantity]
        for quantity in dict.fromkeys(each.quantity for each in found)
    }
    assert {quantity: (len(rows), len(rows[0].values)) for quantity, rows in of.items()} == {
        "attention_distance_px": (3 * row.depth, row.num_heads),
        "position_similarity": (3 * patches, patches),
        "filter": (3 * filters, row.patch_size**2 * 3),
        "explained_variance": (3, filters),
    }
    assert [each.seed for each in of["explained_variance"]] == [0, 1, 2]
    # again, from the models, the same bytes
    before = path.read_bytes()
    path.write_bytes(empty)
    look_inside(schedule, "class_token", 3)
    assert path.read_bytes() == before

    page = make_inside(plan, schedule.study, found, tmp_path)
    assert page[0] == "### Inside the trained models: class token"
    started = replace(schedule.study, starts={"class_token": None})
    assert make_inside(plan, started, found, tmp_path)[0].startswith("### Inside the pre-trained m")
    assert f"over {NUM_IMAGES} test images" in page[1].replace("\n", " ")
    assert page[2].count("\n") == 1 + row.depth and "| not visible" in page[3]
    pictures = sorted(each.name for each in tmp_path.glob("results_*.png"))
    assert pictures == [
        f"results_class_token_class_token_{kind}.png"
        for kind in ("distance", "filters", "positions")
    ]
    assert all(any(name in line for line in page) for name in pictures)


def test_only_the_runs_that_the_file_does_not_describe_need_their_weights(tmp_path: Path):
    schedule, _ = make_study_folder(tmp_path)
    runs, path = tmp_path / "runs" / "class_token", tmp_path / "results" / FILE
    two = look_inside(schedule, "class_token", 2)
    for seed in (0, 1):  # trained on another machine
        shutil.rmtree(runs / f"seed_{seed}")
    three = look_inside(schedule, "class_token", 3)
    assert three[: len(two)] == two and {each.seed for each in three[len(two) :]} == {2}
    assert read_findings(path) == three
    # rows of a run that was repeated with other weights are not kept
    table = tmp_path / "results" / "trials.csv"
    table.write_text(table.read_text().replace(f"{1:064x}", f"{7:064x}"))
    with pytest.raises(ValueError, match=r"seed_1 does not hold the run of the row of class_token"):
        look_inside(schedule, "class_token", 3)


def test_the_page_of_results_shows_what_is_inside(tmp_path: Path):
    schedule, _ = make_study_folder(tmp_path)
    look_inside(schedule, "class_token", 3)
    (tmp_path / "all").mkdir()
    (tmp_path / "results").rename(tmp_path / "all" / "class_token")
    pages = []
    for name in ("once", "again"):
        (tmp_path / name).mkdir()
        write_results(tmp_path / "all", tmp_path / name)
        pages.append({each.name: each.read_bytes() for each in (tmp_path / name).iterdir()})
    assert pages[0] == pages[1] and "results_class_token_class_token_distance.png" in pages[0]
    text = pages[0]["results.md"].decode()
    assert "### Inside the trained models: class token" in text
    # in the table of all such claims, and in that of the models
    assert text.count("| Attention distance increases with depth: last layer minus first. |") == 2


def test_findings_of_other_runs_are_not_shown(tmp_path: Path):
    schedule, _ = make_study_folder(tmp_path, seeds=1)
    look_inside(schedule, "class_token", 1)
    (tmp_path / "all").mkdir()
    (tmp_path / "results").rename(tmp_path / "all" / "class_token")
    table = tmp_path / "all" / "class_token" / "trials.csv"
    table.write_text(table.read_text().replace("0" * 64, "1" * 64))
    with pytest.raises(ValueError, match="class_token with seed 0 that trials.csv does not have"):
        write_results(tmp_path / "all", tmp_path)


def test_a_hybrid_has_the_distances_of_its_tokens(tmp_path: Path):
    study = make_study("hybrid", "smoke")
    (arm, config), *_ = [
        (name, arm.config)
        for name, arm in study.arms.items()
        if getattr(row_of(arm.config.model, arm.config.variant), "stem", None)
    ]
    stride = row_of(config.model, config.variant).total_stride
    grid = config.image_size // stride
    rows = [Finding(arm, 0, "0", "attention_distance_px", 0, [1.0])]
    rows += [Finding(arm, 0, "0", "filter", 0, list(np.linspace(0, 1, 147)))]
    rows += [Finding(arm, 0, "0", "explained_variance", 0, [1.0])]
    places = [np.array(divmod(token, grid)) * stride for token in range(grid * grid)]
    # ViT-L/16 at 224 pixels, as on the page: a class token attends, and is attended to, at distance 0
    paper = [16 * np.array(divmod(token, 14)) for token in range(196)]
    whole = np.mean([np.hypot(*(one - other)) for one in paper for other in paper]) * 196 / 197
    assert round(whole, 1) == PAPER_UNIFORM
    uniform = np.mean([np.hypot(*(one - other)) for one in places for other in places])
    assert f"uniform attention it is {uniform:.1f} px" in " ".join(
        make_inside({"study": "hybrid", "size": "smoke", "seeds": 1}, study, rows, tmp_path)
    ).replace("\n", " ")


def test_a_claim_is_judged_over_the_seeds():
    rows = [
        Finding("vit", seed, "0", "attention_distance_px", layer, [value, value + 2.0])
        for seed, (first, last) in enumerate([(4.0, 10.0), (5.0, 11.5), (4.0, 11.0)])
        for layer, value in enumerate((first, last))
    ]
    plan = {"size": "cifar10", "seeds": 3}
    # 6, 6.5 and 7 px: 6.5 ± 4.303 * 0.5 / sqrt(3)
    assert "| holds: +6.5 [+5.3, +7.7] px |" in make_inside_verdicts(rows, plan)
    few = [row for row in rows if row.seed < 2]
    assert "not decided: 2 seeds" in make_inside_verdicts(few, {**plan, "seeds": 2})
    assert "not decided: measured in 2 of 3 runs" in make_inside_verdicts(few, plan)
    assert "not decided: measured in 3 of 5" in make_inside_verdicts(rows, {**plan, "seeds": 5})
    assert "not judged: a smoke run" in make_inside_verdicts(rows, {**plan, "size": "smoke"})


def test_what_cannot_be_looked_into_is_named(tmp_path: Path):
    schedule, _ = make_study_folder(tmp_path, seeds=1)
    with pytest.raises(ValueError, match=r"no arm and no start 'clas_token'.* mean class_token"):
        look_inside(schedule, "clas_token", 1)
    with pytest.raises(ValueError, match="class_token has no finished run with seed 1"):
        look_inside(schedule, "class_token", 2)
    write_json(tmp_path / "runs/class_token/seed_0/measured.json", {"state_sha256": "another"})
    with pytest.raises(ValueError, match="does not hold the run of the row of class_token"):
        look_inside(schedule, "class_token", 1)
    assert not (tmp_path / "results" / FILE).exists()


@pytest.mark.parametrize("indices", [(1, 0), (0, 0), (0, 2), (1,)])
def test_arrays_with_rows_out_of_order_are_refused(indices: tuple, tmp_path: Path):
    lines = [COLUMNS, *(("vit", 0, "0", "filter", index, "[1.0]") for index in indices)]
    with open(tmp_path / FILE, "w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows(lines)
    with pytest.raises(ValueError, match="rows of filter of vit, seed 0, in their order"):
        read_findings(tmp_path / FILE)


def test_a_file_with_other_columns_is_refused(tmp_path: Path):
    assert read_findings(tmp_path / FILE) == []
    (tmp_path / FILE).write_text("arm,seed\nvit,0\n")
    with pytest.raises(ValueError, match="must have the columns arm, seed, state_sha256"):
        read_findings(tmp_path / FILE)
