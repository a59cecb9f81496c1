"""The ablations: what their arms differ in, the arithmetic of their tables, and a study through the
script.
"""

import csv
import hashlib
import json
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace

import keras
import numpy as np
import psutil
import pytest
import warm
from warm import HUNG_SECONDS

tf = pytest.importorskip("tensorflow")
pytest.importorskip("sklearn")
pytest.importorskip("matplotlib")
pytest.importorskip("psutil")

import keras_vit  # noqa: E402
from keras_vit import cost  # noqa: E402
from keras_vit.data import sources  # noqa: E402
from keras_vit.devices import Devices  # noqa: E402
from keras_vit.train import DevicesConfig, FinetuneConfig  # noqa: E402
from keras_vit.train.checkpoints import Checkpoints  # noqa: E402
from keras_vit.train.config import row_of  # noqa: E402
from keras_vit.train.inputs import make_sources  # noqa: E402
from keras_vit.train.logs import read_metrics  # noqa: E402
from keras_vit.train.optimizers import make_optimizer  # noqa: E402
from keras_vit.weights.restore import named_variables  # noqa: E402

ROOT = Path(__file__).parents[1]
sys.path.append(str(ROOT / "experiments"))  # where a script finds what lies beside it

from ablations import runs  # noqa: E402
from ablations.arms import Arm, Claim, Study, better  # noqa: E402
from ablations.report import find_differences, verdict, with_deviation, write_report  # noqa: E402
from ablations.runs import train_and_measure  # noqa: E402
from ablations.studies import STUDIES, make_study  # noqa: E402
from command_line.trials import claim  # noqa: E402

pytestmark = pytest.mark.tensorflow

ENV = {**os.environ, "KERAS_BACKEND": "tensorflow"}
FOLDER = {"kind": "image_folder", "name": "/data/cifar10"}
SIZES = {"cifar10": FOLDER, "smoke": {}}
EACH = [(name, size) for name in STUDIES for size in SIZES]


def study_of(name: str, size: str = "cifar10") -> Study:
    return make_study(name, size, SIZES[size])


def config_of(name: str, arm: str, size: str = "cifar10"):
    return study_of(name, size).arms[arm].config


def build(config, **options):
    row, shape = row_of(config.model, config.variant), (config.image_size, config.image_size, 3)
    options = {
        "weights": None,
        "classes": 10,
        "input_shape": shape,
        **config.model_options,
        **options,
    }
    return keras_vit.application(row)(**options)


# What the arms of each study may differ in; everything else is the same.
VARIED = {
    "class_token": {"run.optimizer.learning_rate", "model_options.classifier"},
    "positions": {"model_options.position_embedding", "model_options.position_placement"},
    "shape": {"variant.depth", "variant.width", "variant.mlp_dim", "variant.patch_size"},
    "optimizer": {"variant.units", "run.optimizer."},
    "axial": {"variant.", "model", "model_options."},
    "hybrid": {"variant.", "model", "model_options."},
    "crop": {"run.data.crop"},
    "data_size": {"variant.", "model", "model_options.", "run.data.train_share"},
}


def test_every_study_is_tested():
    assert [*VARIED] == [*STUDIES]


@pytest.mark.parametrize(("name", "size"), EACH)
def test_arms_differ_in_what_is_tried_and_in_nothing_else(name: str, size: str):
    fields = {
        field for values in find_differences(study_of(name, size).arms).values() for field in values
    }
    whole = tuple(may for may in VARIED[name] if may.endswith("."))
    wrong = [field for field in fields - VARIED[name] if not field.startswith(whole or "nothing")]
    assert fields and not wrong


@pytest.mark.parametrize(("name", "size"), EACH)
def test_no_two_arms_are_the_same(name: str, size: str):
    arms = study_of(name, size).arms
    assert len({repr(asdict(arm.config)) for arm in arms.values()}) == len(arms) >= 3
    assert len({arm.title for arm in arms.values()}) == len(arms)


def test_what_differs_is_seen_by_the_comparison_itself():
    config = config_of("class_token", "gap")
    other = replace(config, run=replace(config.run, batch_size=64))
    arms = {"one": Arm(title="one", config=config), "other": Arm(title="other", config=other)}
    assert find_differences(arms) == {
        "one": {"run.batch_size": 128},
        "other": {"run.batch_size": 64},
    }


@pytest.mark.parametrize("name", STUDIES)
def test_the_two_sizes_have_the_same_kinds_of_arms_and_the_same_claims(name: str):
    large, small = study_of(name), study_of(name, "smoke")
    assert len(large.claims) == len(small.claims) and large.source == small.source
    if name not in ("axial", "data_size"):  # patches and shares are other numbers
        assert [*large.arms] == [*small.arms]


@pytest.mark.parametrize("size", SIZES)
def test_learning_rates_of_figure_9(size: str):
    arms = study_of("class_token", size).arms
    rates = {name: arm.config.run.optimizer.learning_rate for name, arm in arms.items()}
    assert rates == {"class_token": 8e-4, "gap": 8e-4, "gap_low_rate": 3e-4}
    heads = {name: arm.config.model_options["classifier"] for name, arm in arms.items()}
    assert heads == {"class_token": "token", "gap": "gap", "gap_low_rate": "gap"}


@pytest.mark.parametrize("size", SIZES)
def test_positions_are_the_cells_of_table_8(size: str):
    # arXiv:2010.11929, Table 8, in percent.
    table_8 = {
        ("none", "stem"): 61.382,
        ("learned_1d", "stem"): 64.206,
        ("learned_1d", "every_layer"): 63.964,
        ("learned_1d", "shared"): 64.292,
        ("learned_2d", "stem"): 64.001,
        ("learned_2d", "every_layer"): 64.046,
        ("learned_2d", "shared"): 64.022,
        ("relative", "stem"): 64.032,
    }
    arms = study_of("positions", size).arms.values()
    options = [arm.config.model_options for arm in arms]
    cells = [(each["position_embedding"], each["position_placement"]) for each in options]
    found = dict(zip(cells, [arm.paper for arm in arms], strict=True))
    assert found == {**table_8, ("sincos2d", "stem"): None}
    assert {each["classifier"] for each in options} == {"token"}


def test_numbers_of_tables_6_and_7_stand_beside_the_right_arms():
    optimizer = {name: arm.paper for name, arm in study_of("optimizer").arms.items()}
    assert optimizer == {
        "adam_small": 89.33,
        "sgd_small": 88.79,
        "adam_large": 94.01,
        "sgd_large": 93.72,
    }
    hybrid = {name: (arm.paper, arm.paper_of) for name, arm in study_of("hybrid").arms.items()}
    assert hybrid == {
        "vit_small": (92.50, "ViT_B32, 55 exaFLOPs"),
        "hybrid_small": (94.27, "R50_ViT_B32, 106 exaFLOPs"),
        "resnet_small": (89.33, "ResNet50x1, 50 exaFLOPs"),
        "vit_large": (94.27, "ViT_L32, 196 exaFLOPs"),
        "hybrid_large": (94.85, "R50_ViT_L32, 246 exaFLOPs"),
        "resnet_large": (92.01, "ResNet50x2, 199 exaFLOPs"),
    }


@pytest.mark.parametrize("size", SIZES)
def test_hybrids_cost_what_the_others_cost(size: str):
    arms = study_of("hybrid", size).arms
    for level in ("small", "large"):
        macs = []
        for family in ("vit", "hybrid", "resnet"):
            config = arms[f"{family}_{level}"].config
            options = {} if family == "resnet" else {"classifier": "gap"}
            row = row_of(config.model, config.variant)
            macs.append(cost.macs(row, (config.image_size,) * 2, classes=10, **options))
        assert max(macs) / min(macs) < 1.03
    assert arms["resnet_large"].macs > 1.5 * arms["resnet_small"].macs
    stems = {
        family: row_of("ViT_Ti16", arms[f"{family}_large"].config.variant).stem
        for family in ("vit", "hybrid")
    }
    assert stems["vit"] is None and stems["hybrid"] is not None


def test_sgd_is_bits_rule_as_the_optimizer_has_it():
    config = config_of("optimizer", "sgd_large")
    optimizer = make_optimizer(
        config.run.optimizer, build(config_of("optimizer", "sgd_small")), 1600
    )
    base = 0.03 * 128 / 256
    for step, share in (
        (100, 1),
        (532, 1),
        (534, 0.1),
        (1066, 0.1),
        (1068, 0.01),
        (1421, 0.01),
        (1423, 0.001),
    ):
        (rate,) = set(optimizer.learning_rates(step).values())
        assert rate == pytest.approx(base * share)
    assert config.run.optimizer.options == {"momentum": 0.9}


def test_what_is_derived_from_a_changed_field_follows_it():
    changes = {"run.loop.total_steps": "3200", "run.batch_size": "256"}
    run = make_study("optimizer", "cifar10", FOLDER, changes).arms["sgd_small"].config.run
    assert (
        run.optimizer.schedule_options == {"boundaries": (1067, 2133, 2844)}
        and run.loop.total_steps == 3200
    )
    assert run.optimizer.learning_rate == pytest.approx(0.03)
    with pytest.raises(ValueError, match="no field 'run.stepz'"):
        make_study("optimizer", "cifar10", FOLDER, {"run.stepz": "1"})


def test_shares_of_the_training_set_are_nested_and_equal_for_all_models():
    arms, labels = study_of("data_size", "smoke").arms, {}
    for name, arm in arms.items():
        train, validation = make_sources(arm.config.run.data, seed=1)
        labels[name] = {train.locate(index) for index in range(train.num_examples)}
        held_out = {validation.locate(index) for index in range(validation.num_examples)}
        assert not labels[name] & held_out and len(held_out) == 144
    assert len(labels["vit_9"]) == round((1437 - 144) / 9) and len(labels["vit_1"]) == 1437 - 144
    assert labels["vit_9"] < labels["vit_1"]
    assert labels["vit_9"] == labels["resnet_9"] == labels["half_vit_9"]
    shares = [
        arm.config.run.data.train_share
        for name, arm in study_of("data_size").arms.items()
        if name[:3] == "vit"
    ]
    assert shares == pytest.approx([1 / 27, 1 / 9, 1 / 3, 1])


def test_the_best_checkpoint_of_a_run_is_one_that_was_evaluated():
    for arm in study_of("data_size").arms.values():
        assert arm.config.run.loop.checkpoint_every == arm.config.run.loop.evaluate_every == 100


@pytest.mark.parametrize(
    ("num_classes", "each", "shots", "drawn_of"),
    [(2, 40, 10, 80), (20, 120, 10, 2000), (21, 30, 5, 630)],
)
def test_few_examples_are_ten_of_each_class_or_five_of_many_drawn_ten_times(
    monkeypatch, num_classes: int, each: int, shots: int, drawn_of: int
):
    labels = np.arange(num_classes * each) % num_classes
    train = sources.arrays(np.zeros((len(labels), 1, 1), "uint8"), labels)
    test = train.subset(np.arange(num_classes))
    asked = []

    def extract(model, part, *, progress, **how):
        asked.append((part.num_examples, how))
        return SimpleNamespace(values=np.eye(num_classes)[part.labels], labels=part.labels)

    monkeypatch.setattr(runs, "extract", extract)
    found = runs.measure_fewshot(None, train, test, {"batch_size": 7})
    assert asked == [(drawn_of, {"batch_size": 7}), (num_classes, {"batch_size": 7})]
    assert (found["shots"], found["fewshot/accuracy"], found["fewshot/draws"]) == (
        shots,
        1.0,
        [1.0] * 10,
    )


def test_the_best_checkpoint_counts_where_a_part_is_held_out_and_the_last_weights_elsewhere(
    tmp_path: Path,
):
    config = config_of("data_size", "vit_1", "smoke")
    model, one = build(config, classifier_activation=None), Devices(kind="one", num_replicas=1)
    for step, accuracy in ((2, 0.5), (4, 0.75), (6, 0.25)):
        for variable in model.trainable_variables:
            variable.assign(keras.ops.full(variable.shape, float(step)))
        named = named_variables(model.layers).items()
        arrays = {f"weights/{name}": keras.ops.convert_to_numpy(value) for name, value in named}
        Checkpoints(tmp_path, keep=9).save(
            step, arrays | {"seeds/000": np.zeros(2)}, {"validation/accuracy": accuracy}
        )
    keras_vit.save_checkpoint(model, tmp_path / "model.npz")
    found, step = runs.load_trained(config, tmp_path, 10, one)
    assert step == 4 and {float(value.max()) for value in found.get_weights()} == {4.0}
    config = replace(config, run=replace(config.run, data=replace(config.run.data, held_out=0.0)))
    found, step = runs.load_trained(config, tmp_path, 10, one)
    assert step == config.run.loop.total_steps and {
        float(value.max()) for value in found.get_weights()
    } == {6.0}


def by_hand(times: int, *, patch_size: int, depth: int, width: int, mlp_dim: int, **other) -> int:
    """MACs of a Transformer with `times` as many blocks."""
    tokens = (IMAGE_SIZE[depth] // patch_size) ** 2
    block = tokens * (4 * width**2 + 2 * width * mlp_dim) + 2 * tokens**2 * width
    return tokens * 3 * patch_size**2 * width + times * depth * block


IMAGE_SIZE = {4: 32, 2: 16}  # by the depth of the base


@pytest.mark.parametrize("size", SIZES)
def test_one_thing_changes_in_the_shape_but_where_all_do(size: str):
    study = study_of("shape", size)
    base = study.arms["base"].config.variant
    for name, arm in study.arms.items():
        changed = {field for field in base if arm.config.variant[field] != base[field]}
        if name.startswith("all"):
            assert changed == {"depth", "width", "mlp_dim", "patch_size"}
        else:
            assert changed == ({name.partition("_x")[0]} if name != "base" else set())
    assert study.relative_compute("base") == 1
    assert study.relative_compute("depth_x4") == pytest.approx(
        by_hand(4, **base) / by_hand(1, **base)
    )
    assert set(study.arms["base"].families) == {
        family for arm in study.arms.values() for family in arm.families
    }


@pytest.mark.parametrize("crop", ["inception", "resize_crop", "resize"])
def test_crops_go_on_from_one_model(crop: str):
    study = study_of("crop")
    config = study.arms[crop].config
    assert isinstance(config, FinetuneConfig) and config.run.data.crop == crop
    for name in ("model", "variant", "model_options", "image_size"):
        assert getattr(config, name) == getattr(study.start, name)


@pytest.mark.parametrize(
    ("name", "nearest"), [("position", "positions"), ("data", "data_size"), ("hybrids", "hybrid")]
)
def test_an_unknown_study_names_its_neighbours(name: str, nearest: str):
    with pytest.raises(ValueError, match=f"There is no study '{name}'. Did you mean {nearest}"):
        make_study(name, "smoke")
    with pytest.raises(
        ValueError, match="`--size` must be one of cifar10, smoke. Received: 'large'"
    ):
        make_study(nearest, "large")


@pytest.mark.slow
@pytest.mark.parametrize("name", STUDIES)
def test_every_model_builds_and_learns_a_step(name: str):
    configs = [arm.config for arm in study_of(name, "smoke").arms.values()]
    models = {
        repr((config.model, config.variant, config.model_options)): config for config in configs
    }
    for config in models.values():
        model = build(config, classifier_activation=None)
        images = np.random.RandomState(0).uniform(
            -1, 1, (4, config.image_size, config.image_size, 3)
        )
        with tf.GradientTape() as tape:
            logits = model(images.astype("float32"), training=True)
            loss = -tf.reduce_mean(tf.nn.log_softmax(logits)[:, 3])
        gradients = tape.gradient(loss, [variable.value for variable in model.trainable_variables])
        # the head starts at zero
        assert logits.shape == (4, 10) and float(loss) == pytest.approx(math.log(10))
        assert all(gradient is not None and np.isfinite(gradient).all() for gradient in gradients)
        assert any(np.any(gradient) for gradient in gradients)


# ---- the arithmetic of the tables


def toy(claims: tuple[Claim, ...] = (), picture: str = "means") -> Study:
    arms = {
        name: Arm(
            title=title, config=config_of("hybrid", f"{name}_small"), families=(title,), paper=paper
        )
        for name, title, paper in (("vit", "A ViT", 50.0), ("resnet", "A ResNet", None))
    }
    return Study(
        title="Toy",
        source="D.0",
        about="?",
        arms=arms,
        claims=claims,
        picture=picture,
        paper_label="Table 0",
    )


def row(arm: str, seed: int, accuracy: float | None, **more) -> dict:
    measured = (
        {}
        if accuracy is None
        else {
            "test/accuracy": accuracy,
            "fewshot/accuracy": accuracy / 2,
            "shots": 10,
            "train_images": 100,
            "parameters": 1234,
            "images_per_second": 10.0,
        }
    )
    return {
        "arm": arm,
        "seed": seed,
        **measured,
        "command": f"python a.py --only={arm}/seed_{seed}",
        **more,
    }


def rows_of(vit: list, resnet: list) -> list[dict]:
    return [
        row(arm, seed, value)
        for arm, values in (("vit", vit), ("resnet", resnet))
        for seed, value in enumerate(values)
    ]


CLAIM = better("vit", "resnet", "ViT is better.")


def test_mean_and_sample_deviation():
    mean, deviation = with_deviation([60.0, 62.0, 67.0])
    assert mean == pytest.approx(63.0)
    assert deviation == pytest.approx(math.sqrt((9 + 1 + 16) / 2))
    assert with_deviation([60.0]) == (60.0, None)


def test_a_verdict_is_of_the_means_and_its_deviation_of_the_seeds():
    rows = rows_of([0.62, 0.64, 0.63], [0.60, 0.61, 0.62])
    found = verdict(CLAIM, toy(), rows, "test")  # differences 2, 3, 1
    assert (
        found["holds"] is True
        and found["value"] == pytest.approx(2.0)
        and found["deviation"] == pytest.approx(1.0)
    )
    assert found["words"] == "yes: +2.00 ± 1.00 points"
    assert verdict(CLAIM, toy(), rows, "fewshot")["words"] == "yes: +1.00 ± 0.50 points"


@pytest.mark.parametrize(
    ("vit", "resnet", "words"),
    [
        ([0.60, 0.60], [0.62, 0.64], "no: -3.00 ± 1.41 points"),
        ([0.60, 0.64], [0.61, 0.61], "yes, within the noise: +1.00 ± 2.83 points"),
        ([0.60, 0.61], [0.61, 0.60], "no, within the noise: +0.00 ± 1.41 points"),
        ([0.61], [0.60], "yes: +1.00 points"),
        ([0.60, None], [0.60, 0.60], "not decided: A ViT is not finished"),
    ],
)
def test_verdicts_in_words(vit: list, resnet: list, words: str):
    assert verdict(CLAIM, toy(), rows_of(vit, resnet), "test")["words"] == words


def test_a_run_that_diverged_is_reported_and_not_averaged_away(tmp_path: Path):
    rows = rows_of([0.60, 0.70, 0.80], [0.50, 0.52, None])
    rows[-1]["diverged"] = "Step 7: the loss is nan."
    page = write_report(tmp_path, toy((CLAIM,)), rows, "python a.py").read_text()
    assert "70.00 ± 10.00" in page
    assert "diverged in 1 of 3; the others 50.00, 52.00" in page and "51.00" not in page
    assert "not decided: A ResNet diverged" in page
    assert "- A ResNet, seed 2: Step 7: the loss is nan." in page
    with open(tmp_path / "ablation.csv", newline="") as file:
        lines = list(csv.DictReader(file))
    assert [line["test/accuracy"] for line in lines] == ["0.6", "0.7", "0.8", "0.5", "0.52", ""]
    assert lines[5]["diverged"] == "Step 7: the loss is nan." and lines[5]["command"].endswith(
        "--only=resnet/seed_2"
    )


@pytest.mark.parametrize("picture", ["means", "compute", "data"])
def test_each_picture_is_drawn_also_of_half_a_study(picture: str, tmp_path: Path):
    write_report(tmp_path, toy(picture=picture), rows_of([0.60, 0.70], [None, None]), "python a.py")
    assert (tmp_path / "ablation.png").stat().st_size > 10_000
    page = (tmp_path / "ablation.md").read_text()
    assert "| A ResNet | - | 1.00 |" in page and "| not yet | not yet | - |" in page
    assert "65.00 ± 7.07 | 50 |" in page


def test_a_study_of_which_nothing_is_known_has_no_picture(tmp_path: Path):
    write_report(tmp_path, toy(), rows_of([None], [None]), "python a.py")
    assert (
        not (tmp_path / "ablation.png").exists()
        and "not yet" in (tmp_path / "ablation.md").read_text()
    )


def test_exaflops_of_a_run():
    arm = study_of("shape").arms["all_x1.5"]  # the model of cifar10_scratch.py
    assert arm.config.variant["depth"] == 6 and arm.config.variant["width"] == 96
    assert arm.exaflops == pytest.approx(6 * arm.macs * 1600 * 128 / 1e18)


# ---- whose folder it is


def claimed(folder: Path, plan: dict) -> dict:
    """What is written down; as if the process had ended since."""
    claim(folder / "ablation.json", plan, free=("seeds",))
    found = json.loads((folder / "ablation.json").read_text())
    del found["process"]
    (folder / "ablation.json").write_text(json.dumps({**found, "kept": 1}))
    return found["plan"]


def test_a_folder_belongs_to_one_study_once_a_run_has_begun(tmp_path: Path):
    plan = {
        "study": "crop",
        "seeds": 2,
        "arms": {"one": {"run": {"batch_size": 8, "devices": {"kind": "one"}}}},
    }
    elsewhere = {"run": {"batch_size": 8, "devices": {"kind": "auto"}}}
    assert claimed(tmp_path, {"study": "shape"}) == {"study": "shape"}
    assert claimed(tmp_path, plan) == plan  # the first was a mistake: nothing had begun
    (tmp_path / "one" / "seed_0").mkdir(parents=True)
    (tmp_path / "one" / "seed_0" / "config.json").write_text("{}")
    assert claimed(tmp_path, {**plan, "seeds": 3})["seeds"] == 3
    assert claimed(tmp_path, {**plan, "arms": {"one": elsewhere}})["arms"] == {"one": elsewhere}
    assert json.loads((tmp_path / "ablation.json").read_text())["kept"] == 1
    with pytest.raises(
        ValueError, match="holds another ablation:\n  study: there crop, here shape"
    ):
        claimed(tmp_path, {**plan, "study": "shape"})
    # runs of `--only`, from other machines: each knows its own config
    (tmp_path / "ablation.json").unlink()
    assert claimed(tmp_path, plan) == plan


def test_two_processes_do_not_work_on_one_folder(tmp_path: Path):
    claim(tmp_path / "ablation.json", {"study": "crop"})
    with pytest.raises(
        ValueError, match=f"Another ablation is running in .*, as process {os.getpid()}"
    ):
        claim(tmp_path / "ablation.json", {"study": "crop"})


# ---- through the script


def command(*options: str) -> list[str]:
    return [sys.executable, f"{ROOT}/experiments/ablations.py", *options]


def ablations(*options: str) -> subprocess.CompletedProcess:
    return warm.run(
        command(*options), env=ENV, capture_output=True, text=True, timeout=HUNG_SECONDS
    )


def wait_for(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + HUNG_SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def results(workdir: Path) -> dict[str, dict]:
    """What was measured, by run, without what depends on the clock."""
    found = {}
    for path in workdir.glob("*/*/measured.json"):
        measured = json.loads(path.read_text())
        found["/".join(path.parts[-3:-1])] = {**measured, "images_per_second": None}
    return found


def stamps(workdir: Path) -> dict[str, tuple[str, int]]:
    return {
        str(path): (hashlib.sha256(path.read_bytes()).hexdigest(), path.stat().st_mtime_ns)
        for path in workdir.glob("*/*/measured.json")
    }


@pytest.mark.slow
def test_a_study_that_was_killed_and_stopped_gives_what_one_in_a_row_gives(tmp_path: Path):
    more = [
        "--config.run.loop.total_steps=200",
        "--config.run.loop.checkpoint_every=20",
        "--seeds=1",
    ]
    study = ["--study=class_token", "--size=smoke", *more]
    line = command(*study, f"--workdir={tmp_path}/broken")
    second = tmp_path / "broken" / "gap" / "seed_0"

    with open(tmp_path / "stopped.txt", "w") as output:
        killed = warm.Popen(line, env=ENV, stdout=output, stderr=output)
        wait_for(lambda: any(second.glob("checkpoints/0*")) or killed.poll() is not None)
        (run,) = psutil.Process(killed.pid).children()
        run.suspend()  # else it may end before the next start
        killed.kill()  # not the run that it has started
        killed.wait()
        stopped = warm.Popen(line, env=ENV, stdout=output, stderr=output)
        wait_for(lambda: "still runs" in (tmp_path / "stopped.txt").read_text())
        run.resume()
        wait_for(
            lambda: (
                "runs to do" in (tmp_path / "stopped.txt").read_text().partition("still runs")[2]
            )
        )
        stopped.send_signal(signal.SIGTERM)
        stopped.wait(HUNG_SECONDS)
    assert stopped.returncode == 75, (tmp_path / "stopped.txt").read_text()
    finished = stamps(tmp_path / "broken")
    # as a kill in the midst of their removal does
    left = Path(next(iter(finished))).with_name("checkpoints")
    left.mkdir()
    page = (tmp_path / "broken" / "ablation.md").read_text()
    assert "not yet" in page and "not decided: GAP, rate " in page

    gone_on = ablations(*study, f"--workdir={tmp_path}/broken")
    assert gone_on.returncode == 0, gone_on.stderr[-3000:]
    assert "Resuming from step" in (second / "log.txt").read_text()
    in_a_row = ablations(*study, f"--workdir={tmp_path}/whole")
    assert in_a_row.returncode == 0, in_a_row.stderr[-3000:]
    assert len(results(tmp_path / "whole")) == 3 and results(tmp_path / "whole") == results(
        tmp_path / "broken"
    )
    after = stamps(tmp_path / "broken")
    # no finished run is repeated
    assert len(finished) >= 1 and {path: after[path] for path in finished} == finished

    page = (tmp_path / "broken" / "ablation.md").read_text()
    measured = results(tmp_path / "whole")["class_token/seed_0"]
    assert (
        f"{100 * measured['fewshot/accuracy']:.2f} | {100 * measured['test/accuracy']:.2f} |"
        in page
    )
    assert measured["fewshot/accuracy"] == pytest.approx(np.mean(measured["fewshot/draws"]))
    assert (tmp_path / "broken" / "ablation.png").stat().st_size > 10_000
    report = json.loads((tmp_path / "broken" / "ablation.json").read_text())
    assert [run["arm"] for run in report["runs"]] == ["class_token", "gap", "gap_low_rate"]
    assert all(run["seconds"] > 0 and "--only=" in run["command"] for run in report["runs"])
    assert not any((tmp_path / "broken").glob("*/*/checkpoints"))

    for other, message in (
        (["--study=crop", "--size=smoke"], "holds another ablation:"),
        (
            [*study[:2], "--config.run.loop.total_steps=201"],
            "run.loop.total_steps: there 200, here 201",
        ),
        (["--study=class_token", "--data=tfds"], "holds another ablation:"),
    ):
        refused = ablations(*other, f"--workdir={tmp_path}/broken")
        assert (
            refused.returncode == 1
            and message in refused.stderr
            and "Traceback" not in refused.stderr
        )


def test_a_run_that_was_killed_while_its_checkpoints_were_removed_is_cleared_away(tmp_path: Path):
    for name, found in (("measured", {"test/accuracy": 0.5}), ("begun", {})):
        (tmp_path / name / "checkpoints" / "0000000002").mkdir(parents=True)
        (tmp_path / name / "checkpoints" / "0000000002" / "state.npz").write_bytes(b"")
        (tmp_path / name / "measured.json").write_text(json.dumps(found))
        runs.remove_checkpoints(tmp_path / name)
    assert [path.parent.name for path in tmp_path.glob("*/checkpoints")] == ["begun"]
    runs.remove_checkpoints(tmp_path / "measured")  # again: nothing is left to remove


@pytest.mark.slow
def test_early_stopping_takes_the_checkpoint_that_is_best_on_the_held_out_part(tmp_path: Path):
    config = config_of("data_size", "vit_9", "smoke")
    run = replace(config.run, devices=DevicesConfig(kind="one"))
    train_and_measure(replace(config, run=run), tmp_path)
    measured = json.loads((tmp_path / "measured.json").read_text())
    curve = dict(read_metrics(tmp_path)["validation/accuracy"])
    assert curve[measured["step"]] == max(curve.values()) and measured["train_images"] == 144
    assert 0 <= measured["test/accuracy"] <= 1 and len(measured["fewshot/draws"]) == 10
    before = (tmp_path / "measured.json").stat().st_mtime_ns
    (tmp_path / "checkpoints").mkdir()
    train_and_measure(replace(config, run=run), tmp_path)
    assert (tmp_path / "measured.json").stat().st_mtime_ns == before and not (
        tmp_path / "checkpoints"
    ).exists()


MISTAKES = {
    "nothing": ([], "`--study` is missing: --study=NAME, one of class_token, positions"),
    "study": (
        ["--study=positios", "--size=smoke", "--workdir={}"],
        "There is no study 'positios'. Did you mean positions",
    ),
    "numbers": (
        ["--study=crop", "--size=smoke", "--workdir={}", "--seeds=0"],
        "`--seeds` must be at least 1",
    ),
    "no data": (["--study=crop", "--workdir={}"], "`--data` is missing"),
    "data": (
        ["--study=crop", "--size=smoke", "--workdir={}", "--data=tfds"],
        "which trains on scikit-learn's digits",
    ),
    "varied": (
        ["--study=shape", "--size=smoke", "--workdir={}", "--config.variant.depth=3"],
        "`variant.depth` must not be changed: the arms differ in it",
    ),
    "seed": (
        ["--study=shape", "--size=smoke", "--workdir={}", "--config.run.seed=3"],
        "`run.seed` is set by --seeds",
    ),
    "field": (
        ["--study=shape", "--size=smoke", "--workdir={}", "--config.run.stepz=3"],
        "no field 'run.stepz'",
    ),
    "run": (
        ["--study=crop", "--size=smoke", "--workdir={}", "--only=crops/seed_0"],
        "`--only` must be <arm>/seed_<n>",
    ),
}


@pytest.mark.parametrize("case", MISTAKES)
def test_mistakes_are_told_in_a_line_and_take_no_folder(case: str, tmp_path: Path):
    options, message = MISTAKES[case]
    refused = ablations(*(option.format(tmp_path / "run") for option in options))
    assert (
        refused.returncode == 1 and message in refused.stderr and "Traceback" not in refused.stderr
    )
    assert not (tmp_path / "run").exists()


def test_the_list_names_every_study():
    listed = ablations("--list")
    assert listed.returncode == 0 and [line.split()[0] for line in listed.stdout.splitlines()] == [
        *STUDIES
    ]
