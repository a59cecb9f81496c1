"""The ablations: what their arms differ in, the arithmetic of their tables, and a study through the
script.
"""

import csv
import hashlib
import io
import json
import math
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace

import keras
import numpy as np
import psutil
import pytest
import warm
from scipy import stats
from warm import HUNG_SECONDS

tf = pytest.importorskip("tensorflow")
pytest.importorskip("sklearn")
matplotlib = pytest.importorskip("matplotlib")
pytest.importorskip("psutil")

import keras_vit  # noqa: E402
from keras_vit import cost  # noqa: E402
from keras_vit.data import sources  # noqa: E402
from keras_vit.data.order import examples_at  # noqa: E402
from keras_vit.devices import Devices  # noqa: E402
from keras_vit.train import DevicesConfig, Diverged, FinetuneConfig, inputs  # noqa: E402
from keras_vit.train.checkpoints import Checkpoints  # noqa: E402
from keras_vit.train.config import row_of  # noqa: E402
from keras_vit.train.finetune_recipe import settle  # noqa: E402
from keras_vit.train.inputs import make_sources  # noqa: E402
from keras_vit.train.logs import read_metrics  # noqa: E402
from keras_vit.train.optimizers import make_optimizer  # noqa: E402
from keras_vit.train.workdir import data_sha256, describe_config  # noqa: E402
from keras_vit.weights.restore import named_variables  # noqa: E402

ROOT = Path(__file__).parents[1]
sys.path.append(str(ROOT / "experiments"))  # where a script finds what lies beside it

from ablations import processor, runs  # noqa: E402
from ablations.arms import (  # noqa: E402
    Arm,
    Claim,
    Study,
    better,
    difference,
    make_finetuned,
    make_rate_config,
    make_seed_config,
    make_start_config,
)
from ablations.page import (  # noqa: E402
    count_trials,
    describe_state,
    judge_published,
    list_facts,
    write_results,
)
from ablations.plan import make_plan, show_command  # noqa: E402
from ablations.plan import study_of as study_of_plan  # noqa: E402
from ablations.processor import name_cpu, name_processor  # noqa: E402
from ablations.rates import choose, find_winner, make_grid, next_rates  # noqa: E402
from ablations.report import (  # noqa: E402
    draw,
    find_differences,
    make_arm_table,
    make_start_table,
    make_verdict_table,
    select_tested,
    verdict,
    with_deviation,
    write_report,
)
from ablations.rows import COLUMNS, Results, key_of  # noqa: E402
from ablations.runs import train_and_measure, train_start  # noqa: E402
from ablations.schedule import Schedule  # noqa: E402
from ablations.studies import STUDIES, make_study  # noqa: E402
from ablations.verdicts import RULE, find_interval  # noqa: E402
from ablations.verdicts import judge as judge_values  # noqa: E402
from command_line.trials import claim, data_of  # noqa: E402

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
    "class_token": {"model_options.classifier"},
    "positions": {"model_options.position_embedding", "model_options.position_placement"},
    "shape": {"variant.depth", "variant.width", "variant.mlp_dim", "variant.patch_size"},
    "optimizer": {"variant.units", "run.optimizer."},
    "axial": {"variant.", "model", "model_options."},
    "hybrid": {"variant.", "model", "model_options."},
    "crop": {"run.data.crop"},
    "data_size": {
        "variant.",
        "model",
        "model_options.",
        "run.data.train_share",
        "run.optimizer.learning_rate",  # the center of the grid
    },
    "pretraining_size": {"variant.", "model", "model_options.", "weights"},
    "self_supervision": {"weights", "run.data.train_share"},
    "transfer": {"weights", "run.data.train_share"},
    "resolution": {"weights", "image_size"},
}
# Studies whose smoke form has other numbers of patches, images or shares.
OTHER_NUMBERS = {"axial", "data_size", "pretraining_size", "self_supervision", "transfer"}


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
    assert len({(repr(asdict(arm.config)), arm.rate_of) for arm in arms.values()}) == len(arms) >= 3
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
    if name not in OTHER_NUMBERS:
        assert [*large.arms] == [*small.arms]


@pytest.mark.parametrize("size", SIZES)
def test_each_arm_of_figure_9_has_its_own_rate_and_gap_also_that_of_the_class_token(size: str):
    arms = study_of("class_token", size).arms
    centers = {arm.config.run.optimizer.learning_rate for arm in arms.values()}
    assert centers == {8e-4}
    rates = {name: arm.rate_of for name, arm in arms.items()}
    assert rates == {"class_token": "", "gap": "", "gap_token_rate": "class_token"}
    heads = {name: arm.config.model_options["classifier"] for name, arm in arms.items()}
    assert heads == {"class_token": "token", "gap": "gap", "gap_token_rate": "gap"}


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
        config.run.optimizer, build(config_of("optimizer", "sgd_small")), 600
    )
    base = 0.03 * 128 / 256
    for step, share in (
        (60, 1),
        (199, 1),
        (201, 0.1),
        (399, 0.1),
        (401, 0.01),
        (532, 0.01),
        (534, 0.001),
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


def names_of(source) -> set[str]:
    return {source.locate(index) for index in range(source.num_examples)}


def test_shares_of_the_training_set_are_nested_and_equal_for_all_models():
    arms, labels = study_of("data_size", "smoke").arms, {}
    for name, arm in arms.items():
        train, validation = make_sources(arm.config.run.data, seed=1)
        labels[name] = names_of(train)
        assert not labels[name] & names_of(validation) and validation.num_examples == 144
    assert len(labels["vit_9"]) == round((1437 - 144) / 9) and len(labels["vit_1"]) == 1437 - 144
    assert labels["vit_9"] < labels["vit_1"]
    assert labels["vit_9"] == labels["resnet_9"] == labels["hybrid_9"]
    for family in ("vit", "hybrid", "resnet"):
        shares = [
            arm.config.run.data.train_share
            for name, arm in study_of("data_size").arms.items()
            if name.startswith(family)
        ]
        assert [round(45_000 * share) for share in shares] == [500, 1667, 5000, 15_000, 45_000]


@pytest.mark.parametrize("name", ["data_size", "pretraining_size"])
@pytest.mark.parametrize("size", SIZES)
def test_models_of_these_studies_have_the_compute_of_the_small_level(name: str, size: str):
    arms, hybrid = study_of(name, size).arms, study_of("hybrid", size).arms
    for arm in arms.values():
        same = hybrid[f"{arm.families[0].lower()}_small"].config
        assert (arm.config.model, arm.config.variant) == (same.model, same.variant)
    assert {arm.families[0] for arm in arms.values()} == {"ViT", "Hybrid", "ResNet"}


@pytest.mark.parametrize(
    ("name", "counts"),
    [
        ("self_supervision", {"1": 500, "2": 1000, "10": 5000, "100": 50_000}),
        ("transfer", {"100": 100, "1000": 1000, "10000": 10_000}),
        ("resolution", {"same": 5000, "interpolated": 5000, "new": 5000}),
        (
            "pretraining_size",
            {"1000": 2000, "5000": 2000, "25000": 2000, "125000": 2000, "endless": 2000},
        ),
    ],
)
def test_numbers_of_labels(name: str, counts: dict):
    arms = study_of(name).arms
    found = {each: arm.config.run.data.train_share for each, arm in arms.items()}
    assert {each.rpartition("_")[2] for each in arms} == {*counts}
    for each, share in found.items():
        assert round(50_000 * share) == counts[each.rpartition("_")[2]]


def test_all_starts_are_fine_tuned_on_the_same_labels():
    arms, labels = study_of("self_supervision", "smoke").arms, {}
    for name, arm in arms.items():
        labels.setdefault(name.rpartition("_")[2], []).append(
            names_of(make_sources(arm.config.run.data, seed=2)[0])
        )
    assert all(each == found[0] for found in labels.values() for each in found)
    assert labels["1"][0] < labels["10"][0] and len(labels["1"]) == 4


# ---- starts


WITH_STARTS = ["crop", "pretraining_size", "self_supervision", "transfer", "resolution"]


def test_these_studies_have_starts():
    assert [name for name in STUDIES if study_of(name).starts] == WITH_STARTS


@pytest.mark.parametrize("name", WITH_STARTS)
@pytest.mark.parametrize("size", SIZES)
def test_each_arm_fine_tunes_the_model_of_its_start(name: str, size: str):
    study = study_of(name, size)
    assert {arm.start for arm in study.arms.values()} - {""} == {*study.starts}
    # both name folders
    assert not {*study.arms} & {*study.starts}
    for arm in study.arms.values():
        config = arm.config
        assert isinstance(config, FinetuneConfig)
        assert config.weights == (arm.start or "none") + ", new positions" * arm.new_positions
        start = study.starts.get(arm.start, next(iter(study.starts.values())))
        for field in ("model", "variant", "model_options"):
            assert getattr(config, field) == getattr(start, field)
        assert config.image_size == start.image_size or name == "resolution"
        # no image that arms are tested on
        assert start.run.data.kind == "fractals" or start.run.data.test == ""


def test_sizes_of_the_pre_training_sets_and_one_pass_over_a_part_of_the_stream():
    starts, counts, of_data = study_of("pretraining_size").starts, {}, {}
    for name, start in starts.items():
        data = start.run.data  # of the three families the same
        if data not in of_data:
            of_data[data] = make_sources(data, seed=3)
        source, validation = of_data[data]
        counts[name] = source.num_examples
        assert validation is None and len(source.class_names) == 200
        assert name.endswith(
            "_endless" if source.num_examples == 625_000 else f"_{source.num_examples}"
        )
        assert start.run.loop.total_steps * start.run.batch_size == 128_000
    sizes = {1000: 3, 5000: 3, 25_000: 3, 125_000: 3, 625_000: 3}  # a start for each family
    assert Counter(counts.values()) == sizes
    # the first images of the stream are those of the largest set
    *_, largest, stream = sorted(
        (of_data[data][0] for data in of_data), key=lambda x: x.num_examples
    )
    for index in (0, 7, 124_999):
        one, other = (source.read(tf.constant(index, tf.int64)) for source in (largest, stream))
        assert all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))
    # a run sees no image of the stream twice
    epochs, seen = examples_at(tf.range(128_000, dtype=tf.int64), stream.num_examples, seed=3)
    assert not np.any(epochs) and len(np.unique(seen)) == 128_000


def test_starts_of_self_supervision_differ_in_their_task_alone():
    starts = study_of("self_supervision").starts
    kinds = [type(start).__name__ for start in starts.values()]
    assert kinds == ["MaskedPatchesConfig", "MAEConfig", "PretrainConfig"]
    runs_of = [start.run for start in starts.values()]
    for run in runs_of:
        assert (run.loop.total_steps, run.batch_size, run.optimizer) == (
            600,
            128,
            runs_of[0].optimizer,
        )
    assert runs_of[0].data == runs_of[1].data and runs_of[0].data.kind == "image_folder"
    assert runs_of[2].data.kind == "fractals"


def test_in_the_resolution_study_only_one_arm_has_new_positions():
    study = study_of("resolution")
    found = {name: (arm.config.image_size, arm.new_positions) for name, arm in study.arms.items()}
    assert found == {"same": (32, False), "interpolated": (48, False), "new": (48, True)}
    assert study.starts["fractals"].model_options["position_embedding"] == "learned_1d"
    # 144 tokens instead of 64, each with 48 * 64 in the embedding and 4 * 32,768 in the blocks
    larger, smaller = (
        tokens * 48 * 64 + 4 * (tokens * 32_768 + 2 * tokens**2 * 64) for tokens in (144, 64)
    )
    assert study.relative_compute("interpolated") == pytest.approx(larger / smaller)


@pytest.mark.parametrize(
    ("name", "number", "accuracies", "value"),
    [
        # 50 - 40 at the smallest share, 58 - 60 on all data: the lead falls by 12
        ("data_size", 2, {"resnet_90": 50, "vit_90": 40, "resnet_1": 58, "vit_1": 60}, 12),
        ("data_size", 5, {"hybrid_90": 45, "vit_90": 40, "hybrid_1": 62, "vit_1": 60}, 3),
        ("data_size", 0, {"resnet_90": 50, "vit_90": 40}, 10),
        ("data_size", 1, {"resnet_1": 58, "vit_1": 60}, 2),
        # the ViT gains 25, the ResNet 10
        (
            "pretraining_size",
            3,
            {"vit_1000": 30, "vit_125000": 55, "resnet_1000": 35, "resnet_125000": 45},
            15,
        ),
        # 8 points with 100 labels, 3 with 10,000
        (
            "transfer",
            3,
            {
                "pretrained_100": 28,
                "scratch_100": 20,
                "pretrained_10000": 63,
                "scratch_10000": 60,
            },
            5,
        ),
        ("self_supervision", 0, {"masked_patches_1": 31, "scratch_1": 30}, 1),
        ("self_supervision", 3, {"masked_patches_100": 50, "scratch_100": 51}, -1),
        ("self_supervision", 6, {"masked_patches_10": 45, "supervised_10": 40}, -5),
        ("self_supervision", 10, {"masked_patches_10": 45, "mae_10": 47}, 2),
        ("resolution", 1, {"interpolated": 50, "new": 47}, 3),
        # D.6: axial attention improves the model that it replaces attention or convolutions in
        ("axial", 0, {"axial_vit_8": 45, "vit_8": 40}, 5),
        ("axial", 1, {"axial_vit_4": 47, "vit_4": 49}, -2),
        ("axial", 2, {"axial_resnet": 54, "resnet": 50}, 4),
        ("optimizer", 0, {"adam_small": 53, "sgd_small": 52}, 1),
        ("optimizer", 1, {"adam_large": 50, "sgd_large": 52}, -2),
        # the lead falls from 4 points to 1
        (
            "hybrid",
            1,
            {"hybrid_small": 44, "vit_small": 40, "hybrid_large": 51, "vit_large": 50},
            3,
        ),
        ("hybrid", 2, {"vit_small": 44, "resnet_small": 40}, 4),
        ("crop", 0, {"resize_crop": 44, "inception": 40}, 4),
    ],
)
def test_claims_are_these_differences(name: str, number: int, accuracies: dict, value: float):
    assert study_of(name).claims[number].value(accuracies) == value


def test_a_model_without_positions_is_worst_only_if_every_other_arm_of_table_8_is_better():
    study = study_of("positions")
    accuracies = {name: 64.0 for name, arm in study.arms.items() if arm.paper is not None}
    # six arms are better than "none", one is worse; fixed positions are not in Table 8
    accuracies |= {"none_stem": 60.0, "relative_stem": 57.0, "sincos2d_stem": 0.0}
    helps, stem, is_worst, matters_most = (claim.value(accuracies) for claim in study.claims)
    assert (helps, stem, is_worst) == (63 - 60, 64 - 60, 57 - 60)
    # the mean of the seven is 63; between the best and the worst of them are 7 points
    assert matters_most == (63 - 60) - (64 - 57)


def test_gains_of_a_shape_are_points_for_each_doubling_of_compute():
    study = study_of("shape")
    gains = {"depth_x4": 3, "patch_size_x0.5": 5, "mlp_dim_x4": 2, "width_x2": 1}
    doublings = {name: math.log2(study.relative_compute(name)) for name in gains}
    accuracies = {name: 40 + gain * doublings[name] for name, gain in gains.items()}
    accuracies |= {"base": 40.0, "all_x1.5": 46.0}
    # the depth gains 3 - 1 more than the width; of the others, the MLP gains the least, 2 - 1
    smaller, deeper = (5 * doublings["patch_size_x0.5"], 3 * doublings["depth_x4"])
    wider, mlp = doublings["width_x2"], 2 * doublings["mlp_dim_x4"]
    expected = [2, 1, smaller, 6, deeper, wider, mlp, 6 - smaller]
    assert [claim.value(accuracies) for claim in study.claims] == pytest.approx(expected)
    assert [claim.is_judged for claim in study.claims] == [True] * 4 + [False] * 4


def test_positions_are_renewed_and_nothing_else(tmp_path: Path):
    study = study_of("resolution", "smoke")
    start, config = study.starts["fractals"], study.arms["new"].config
    source, files = tmp_path / "model.npz", [tmp_path / name / "new.npz" for name in "abc"]
    keras_vit.save_checkpoint(build(start), source)
    for file, seed in zip(files, (0, 0, 1), strict=True):
        run = replace(config.run, seed=seed)
        runs.renew_positions(replace(config, run=run, weights=str(file)), source)
    arrays = [dict(np.load(file)) for file in [source, *files]]
    (name,) = [name for name in arrays[0] if name.endswith("pos_embedding")]
    assert (arrays[0][name].size, arrays[1][name].size) == (16 * 32, 36 * 32)
    assert arrays[1][name].std() == pytest.approx(0.02, rel=0.1)
    assert np.array_equal(arrays[1][name], arrays[2][name])
    assert not np.allclose(arrays[1][name], arrays[3][name])
    # neither the head, which the arm replaces, nor the metadata, which has the image size
    trunk = [other for other in arrays[0] if other.startswith(("embedding", "Transformer/enc"))]
    assert len(trunk) > 10
    for other in trunk:
        assert np.array_equal(arrays[0][other], arrays[1][other])
    # a run that is resumed keeps its file
    before = files[0].stat().st_mtime_ns
    runs.renew_positions(replace(config, weights=str(files[0])), source)
    assert files[0].stat().st_mtime_ns == before


def test_the_features_of_a_start_are_measured_on_the_data_of_the_arms(tmp_path: Path, monkeypatch):
    study = study_of("pretraining_size", "smoke")
    config = make_start_config(study.starts["fractals_vit_16"], 5)
    assert config.run.seed == 5
    keras_vit.save_checkpoint(build(config, classes=8), tmp_path / "model.npz")
    asked = []

    def measure(model, train, test, shots, how):
        asked.append((train.name, train.num_examples, test.num_examples, shots, model.output_shape))
        return {"fewshot_accuracy": 0.25, "fewshot_draws": [0.25], "shots": shots}

    monkeypatch.setattr(runs, "PROCEDURES", {type(config): lambda *_: {"state_sha256": "abc"}})
    monkeypatch.setattr(
        runs,
        "read_metrics",
        # the first interval contains the compilation
        lambda _: {"train/images_per_second": [(20, 1.0), (40, 8.0), (60, 9.0)]},
    )
    monkeypatch.setattr(runs, "measure_fewshot", measure)
    (tmp_path / "checkpoints").mkdir()
    train_start(config, study.find_downstream("fractals_vit_16"), tmp_path)
    assert asked == [("digits train", 1437, 360, 5, (None, 10))]
    found = json.loads((tmp_path / "measured.json").read_text())
    assert found.pop("parameters") > 1000
    assert found == {
        "fewshot_accuracy": 0.25,
        "fewshot_draws": [0.25],
        "shots": 5,
        "learning_rate": 0.003,
        "seed": 5,
        "steps": 60,
        "images_per_second": 8.0,
        "processor": name_cpu(),
        "state_sha256": "abc",
        "training_images": 16,
        "test_images": 360,
    }
    assert not (tmp_path / "checkpoints").exists()
    train_start(config, study.find_downstream("fractals_vit_16"), tmp_path)
    assert len(asked) == 1  # a finished start is not trained again


@pytest.mark.slow
@pytest.mark.parametrize("name", ["masked_patches", "mae", "supervised"])
def test_a_start_is_trained_and_an_arm_begins_with_its_weights(name: str, tmp_path: Path):
    study = study_of("self_supervision", "smoke")

    def shorten(config):
        run = replace(config.run, devices=DevicesConfig(kind="one"))
        loop = replace(run.loop, total_steps=2, log_every=1, checkpoint_every=1)
        optimizer = replace(run.optimizer, warmup_steps=1)
        return replace(config, run=replace(run, loop=loop, optimizer=optimizer))

    start = make_start_config(shorten(study.starts[name]), 1)
    train_start(start, study.find_downstream(name), tmp_path / "start")
    found = json.loads((tmp_path / "start" / "measured.json").read_text())
    assert len(found["fewshot_draws"]) == 10 and 0 < found["fewshot_accuracy"] < 1
    assert (found["shots"], found["test_images"], found["seed"], found["steps"]) == (5, 360, 1, 2)
    assert found["training_images"] == (144 if name == "supervised" else 1437)
    arm = study.arms[f"{name}_10"]
    assert arm.start == name
    weights = tmp_path / "start" / "model.npz"
    config = shorten(replace(arm.config, weights=str(weights)))
    # so small a rate leaves the weights of the start
    train_and_measure(make_seed_config(config, 1e-7, 1), tmp_path / "arm")
    before, after = (dict(np.load(path)) for path in (weights, tmp_path / "arm" / "model.npz"))
    runs.check_run(make_seed_config(config, 1e-7, 1), tmp_path / "arm")  # as it was recorded
    trunk = [each for each in after if each.endswith("kernel") and "head" not in each]
    assert len(trunk) > 10
    for each in trunk:
        assert after[each].std() > 0.01
        np.testing.assert_allclose(after[each], before[each], atol=1e-5)


def test_the_best_checkpoint_of_a_run_is_one_that_was_evaluated():
    for arm in study_of("data_size").arms.values():
        assert arm.config.run.loop.checkpoint_every == arm.config.run.loop.evaluate_every == 75


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
    assert runs.choose_shots(num_classes) == shots
    found = runs.measure_fewshot(None, train, test, shots, {"batch_size": 7})
    assert asked == [(drawn_of, {"batch_size": 7}), (num_classes, {"batch_size": 7})]
    assert (found["shots"], found["fewshot_accuracy"], found["fewshot_draws"]) == (
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
def test_crops_go_on_from_one_start(crop: str):
    arm = study_of("crop").arms[crop]
    assert arm.config.run.data.crop == crop and arm.start == "fractals"


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


# ---- the rule of the verdicts


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
        finding="!",
        about="?",
        arms=arms,
        claims=claims,
        picture=picture,
        paper_label="Table 0",
    )


def with_starts(study: Study, **changes) -> Study:
    """The ViT fine-tunes the start "large", the ResNet the start "small"."""
    start = study_of("crop", "smoke").starts["fractals"]
    arms = {
        name: replace(
            make_finetuned(arm.title, arm.config, arm.config.run, start=start_name),
            **{"families": arm.families, "paper": arm.paper},
        )
        for (name, arm), start_name in zip(study.arms.items(), ("large", "small"), strict=True)
    }
    return replace(study, arms=arms, starts={"small": start, "large": start}, **changes)


def plan_of(seeds: int, size: str = "cifar10") -> dict:
    arms = {name: {"depth": depth} for depth, name in enumerate(toy().arms)}
    return {"study": "toy", "size": size, "seeds": seeds, "version": "0.1", "arms": arms}


def row(arm: str, kind: str, rate: float, seed: int, **more) -> dict:
    return {
        **dict.fromkeys(COLUMNS),
        "arm": arm,
        "kind": kind,
        "learning_rate": rate,
        "seed": seed,
        "command": f"python a.py --only={arm}/{kind}_{seed}",
        **more,
    }


EQUAL = ("vit", "rate", 0.003, 0)  # arm, kind, learning rate and seed of a row


def rows_of(vit: list, resnet: list) -> list[dict]:
    """Rows of a grid whose middle wins, and of tested runs with these accuracies."""
    rates = ((0.00033, 0.3), (0.001, 0.4), (0.003, 0.2))
    rows = [
        row(arm, "rate", rate, 0, held_out_accuracy=value)
        for arm in ("vit", "resnet")
        for rate, value in rates
    ]
    for arm, values in (("vit", vit), ("resnet", resnet)):
        for seed, value in enumerate(values):
            measured = {
                "test_accuracy": value,
                "fewshot_accuracy": None if value is None else value / 2,
                "shots": 10,
                "training_images": 100,
                "test_images": 3000,
                "parameters": 1234,
                "images_per_second": 10.0,
            }
            rows.append(row(arm, "seed", 0.001, seed, **measured))
    return rows


def judge(rows: list[dict], seeds: int, metric: str = "test", size: str = "cifar10") -> str:
    study = toy((CLAIM,))
    tested = select_tested(study, rows, seeds)
    return verdict(CLAIM, study, tested, metric, plan_of(seeds, size))


CLAIM = better("vit", "resnet", "ViT is better.")


def test_mean_and_sample_deviation():
    mean, deviation = with_deviation([60.0, 62.0, 67.0])
    assert mean == pytest.approx(63.0)
    assert deviation == pytest.approx(math.sqrt((9 + 1 + 16) / 2))
    assert with_deviation([60.0]) == (60.0, None)


def test_what_is_equal_in_every_run_is_not_judged():
    words = "not decided: the arms are equal in every run"
    assert judge_values([0.0, 0.0, 0.0], "points") == words
    for sign in (1, -1):
        words = judge_values([0.0, sign * 0.1, 0.0], "points")
        assert words.startswith("not visible at this size: 0.0 [-0.")


@pytest.mark.parametrize(
    ("values", "mean", "half"),
    [
        # s = sqrt((4 + 1 + 9) / 2) = 2.645751; s / sqrt(3) = 1.527525; t(0.975, 2) = 4.302653
        ([1.0, 2.0, 6.0], 3.0, 6.572411),
        # s = sqrt(5 / 3) = 1.290994; s / sqrt(4) = 0.645497; t(0.975, 3) = 3.182446
        ([5.0, 7.0, 8.0, 6.0], 6.5, 2.054260),
    ],
)
def test_the_interval_is_that_of_a_hand_computation(values: list, mean: float, half: float):
    assert find_interval(values) == pytest.approx((mean, mean - half, mean + half), abs=1e-6)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        # 2.53 ± 4.302653 * 1 / sqrt(3), whose lower end is 0.046 or -0.004
        ([1.53, 2.53, 3.53], "holds: +2.53 [+0.05, +5.01] points"),
        ([1.48, 2.48, 3.48], "not visible at this size: +2.480 [-0.004, +4.964] points"),
        # an upper end of -0.016
        ([-1.5, -2.5, -3.5], "does not hold: -2.50 [-4.98, -0.02] points"),
        ([1.5, 2.5, 3.5], "holds: +2.50 [+0.02, +4.98] points"),
        ([1e-9, 1e-9, 1e-9], "holds: 0.000 [0.000, 0.000] points"),
    ],
)
def test_an_end_of_the_interval_that_decides_is_not_rounded_to_zero(values: list, words: str):
    assert judge_values(values, "points") == words


@pytest.mark.parametrize("count", [3, 5, 20])
def test_the_interval_is_that_of_scipys_t_test(count: int):
    values = np.random.RandomState(count).normal(0.3, 2.0, count).tolist()
    theirs = stats.ttest_1samp(values, 0.0).confidence_interval(0.95)
    assert find_interval(values)[1:] == pytest.approx((theirs.low, theirs.high))


@pytest.mark.parametrize(
    ("vit", "resnet", "words"),
    [
        # differences 7, 6, 8: 7 ± 4.303 * 1 / sqrt(3)
        ([0.57, 0.57, 0.60], [0.50, 0.51, 0.52], "holds: +7.0 [+4.5, +9.5] points"),
        ([0.50, 0.51, 0.52], [0.57, 0.57, 0.60], "does not hold: -7.0 [-9.5, -4.5] points"),
        # differences 2, 3, 1: more than one standard deviation from 0, and not decided by it
        (
            [0.62, 0.64, 0.63],
            [0.60, 0.61, 0.62],
            "not visible at this size: +2.0 [-0.5, +4.5] points",
        ),
        # the arms are paired by seed: their spread over the seeds is common to both
        ([0.60, 0.70, 0.80], [0.59, 0.69, 0.79], "holds: +1.0 [+1.0, +1.0] points"),
        ([0.60, 0.70, 0.80], [0.60, 0.70, 0.80], "not decided: the arms are equal in every run"),
        ([0.60, 0.70], [0.50, 0.50], "not decided: 2 seeds, at least 3 needed"),
        ([0.61], [0.60], "not decided: 1 seed, at least 3 needed"),
        ([0.60, None, 0.61], [0.60, 0.60, 0.60], "not decided: A ViT is not finished"),
    ],
)
def test_verdicts_in_words(vit: list, resnet: list, words: str):
    assert judge(rows_of(vit, resnet), len(vit)).startswith(words)


def test_a_verdict_needs_all_seeds_of_the_plan():
    rows = rows_of([0.57, 0.57, 0.60], [0.50, 0.51, 0.52])
    assert judge(rows, 4) == "not decided: A ViT is not finished"
    assert judge(rows, 2) == "not decided: 2 seeds, at least 3 needed"
    assert judge(rows, 3, "fewshot") == "holds: +3.5 [+2.3, +4.7] points"


def test_a_smoke_run_is_not_judged():
    rows = rows_of([0.57, 0.57, 0.60], [0.50, 0.51, 0.52])
    assert judge(rows, 3, size="smoke") == "not judged: a smoke run"


def test_a_difference_that_is_no_claim_has_a_number_and_no_verdict():
    shown, study = replace(CLAIM, is_judged=False), toy((CLAIM,))
    tested = select_tested(study, rows_of([0.57, 0.57, 0.60], [0.50, 0.51, 0.52]), 3)
    assert verdict(shown, study, tested, "test", plan_of(3)) == "+7.0 [+4.5, +9.5] points"


def test_a_table_of_differences_alone_is_not_called_one_of_claims():
    rows, shown = rows_of([0.57, 0.57, 0.60], [0.50, 0.51, 0.52]), replace(CLAIM, is_judged=False)
    for claims, head in (((shown,), "difference"), ((shown, CLAIM), "claim")):
        table = make_verdict_table(toy(claims), rows, plan_of(3))
        assert table.startswith(f"| {head} |")


def test_a_run_with_a_rate_that_no_longer_wins_does_not_count():
    rows = rows_of([0.57, 0.57, 0.60], [0.50, 0.51, 0.52])
    rows[1]["held_out_accuracy"] = 0.1
    rows += [row("vit", "rate", 0.00011, 0, held_out_accuracy=0.2)]  # 0.00033 wins
    assert judge(rows, 3) == "not decided: A ViT is not finished"


def report(folder: Path, study: Study, rows: list[dict], seeds: int) -> str:
    return write_report(folder, study, rows, plan_of(seeds), "python a.py").read_text()


def test_a_run_that_diverged_is_reported_and_not_averaged_away(tmp_path: Path):
    rows = rows_of([0.60, 0.70, 0.80], [0.50, 0.52, None])
    rows[-1]["diverged"] = "Step 7: the loss is nan."
    page = report(tmp_path, toy((CLAIM,)), rows, 3)
    assert "70.00 ± 10.00" in page and "over 3 seeds, on 3,000 test images" in page
    assert "diverged in 1 of 3; the others 50.00, 52.00" in page and "51.00" not in page
    assert "not decided: A ResNet diverged" in page
    assert "- A ResNet, seed 2: Step 7: the loss is nan." in page


def test_the_page_states_the_rule_and_the_learning_rates(tmp_path: Path):
    rows = rows_of([0.60, 0.70, 0.80], [0.50, 0.52, 0.54])
    rows[5]["held_out_accuracy"] = None  # of the ResNet with 0.003
    page = report(tmp_path, toy((CLAIM,)), rows, 3)
    assert RULE in page and "t(0.975, n - 1)" in RULE
    assert "| A ViT | 0.00033: 30.00, **0.001: 40.00**, 0.003: 20.00 |" in page
    assert "| A ResNet | 0.00033: 30.00, **0.001: 40.00**, 0.003: diverged |" in page


def test_accuracies_of_starts_stand_beside_the_arms_that_fine_tune_them(tmp_path: Path):
    study = with_starts(toy((CLAIM,)), metrics=("pretrained", "test"), picture="pretraining")
    rows = rows_of([0.60, 0.70, 0.80], [0.50, 0.52, 0.54])
    for start, values in (("large", (0.3, 0.4, 0.5)), ("small", (0.2, 0.2, 0.2))):
        for seed, value in enumerate(values):
            more = {"fewshot_accuracy": value, "training_images": 10 ** len(start)}
            rows.append(row(start, "start", 0.005, seed, **more))
    tested = select_tested(study, rows, 3)
    assert [each["pretrained_accuracy"] for each in tested] == [0.3, 0.4, 0.5, 0.2, 0.2, 0.2]
    assert {each["pretraining_images"] for each in tested} == {100_000}
    # differences 10, 20, 30: 20 ± 4.303 * 10 / sqrt(3)
    assert verdict(CLAIM, study, tested, "pretrained", plan_of(3)) == (
        "not visible at this size: +20.0 [-4.8, +44.8] points"
    )
    assert "| large | 60 of 32 images | 100,000 | 0.005 | 40.00 ± 10.00 |" in make_start_table(
        study, rows, 3
    )
    head = make_verdict_table(study, rows, plan_of(3)).splitlines()[0]
    assert head == "| claim | 5-shot, pre-trained | test |"
    page = report(tmp_path, study, rows, 3)
    assert "| 40.00 ± 10.00 | 70.00 ± 10.00 | 50 |" in page
    assert (tmp_path / "ablation.png").stat().st_size > 10_000
    # without the row of a start nothing is claimed about it
    tested = select_tested(study, [each for each in rows if each["kind"] != "start"], 3)
    assert verdict(CLAIM, study, tested, "pretrained", plan_of(3)) == (
        "not decided: A ViT is not finished"
    )


@pytest.mark.parametrize(
    ("picture", "images"),
    [("pretraining", (5000, 300)), ("data", (100, 100))],
)
def test_points_are_drawn_at_the_numbers_of_images_that_the_axis_names(
    picture: str, images: tuple, tmp_path: Path, monkeypatch
):
    """Both models are fine-tuned on 100 images; their starts saw 5000 and 300."""
    drawn = []
    for name in ("draw_accuracy_against_compute", "draw_accuracy_against_data"):
        monkeypatch.setattr(
            f"ablations.report.{name}", lambda path, curves, **words: drawn.append((curves, words))
        )
    study = with_starts(toy(), metrics=("test",), metric="test", picture=picture)
    rows = rows_of([0.60, 0.70, 0.80], [0.50, 0.52, 0.54])
    rows += [
        row(start, "start", 0.005, seed, fewshot_accuracy=0.3, training_images=count)
        for start, count in (("large", 5000), ("small", 300))
        for seed in range(3)
    ]
    for seeds in (3, 4):  # the second study is unfinished
        draw(tmp_path / "ablation.png", study, select_tested(study, rows, seeds), seeds)
    axes = [words["x_label"] for _, words in drawn]
    assert axes[0].endswith("training images") and axes[1] == f"{axes[0]} (3 of 4 runs)"
    for curves, _ in drawn:
        (curves,) = curves.values() if picture == "pretraining" else [curves]
        found = {title: (point.x, round(point.accuracy)) for title, (point,) in curves.items()}
        assert found == {"A ViT": (images[0], 70), "A ResNet": (images[1], 52)}
        assert {point.label for (point,) in curves.values()} == {""}
    # an arm that has fewer runs than the other is labelled
    kept = [
        each for each in rows if (each["arm"], each["kind"], each["seed"]) != ("vit", "seed", 2)
    ]
    draw(tmp_path / "ablation.png", study, select_tested(study, kept, 3), 3)
    curves, words = drawn[-1]
    (curves,) = curves.values() if picture == "pretraining" else [curves]
    labels = {title: point.label for title, (point,) in curves.items()}
    assert labels == {"A ViT": "2 of 3 runs", "A ResNet": ""} and words["x_label"] == axes[0]


@pytest.mark.parametrize("picture", ["means", "compute", "data"])
def test_each_picture_is_drawn_also_of_half_a_study(picture: str, tmp_path: Path):
    page = report(tmp_path, toy(picture=picture), rows_of([0.60, 0.70], []), 2)
    assert (tmp_path / "ablation.png").stat().st_size > 10_000
    assert "| A ResNet | - | 1.00 |" in page and "| not yet | not yet | - |" in page
    assert "65.00 ± 7.07 | 50 |" in page


def test_a_study_of_which_nothing_is_known_has_no_picture(tmp_path: Path):
    page = report(tmp_path, toy(), [], 1)
    assert not (tmp_path / "ablation.png").exists() and "ablation.png" not in page
    assert "not yet" in page


def test_exaflops_of_a_run():
    arm = study_of("shape").arms["all_x1.5"]  # the model of cifar10_scratch.py
    assert arm.config.variant["depth"] == 6 and arm.config.variant["width"] == 96
    assert arm.exaflops == pytest.approx(6 * arm.macs * 600 * 128 / 1e18)


# ---- learning rates


@pytest.mark.parametrize(
    ("rate", "grid"),
    [
        (1e-3, (0.00033, 0.001, 0.003)),
        (8e-4, (0.00027, 0.0008, 0.0024)),
        (0.03, (0.01, 0.03, 0.09)),
    ],
)
def test_the_grid_has_two_significant_digits(rate: float, grid: tuple):
    assert make_grid(rate) == grid


@pytest.mark.parametrize(
    ("tried", "further"),
    [
        ({}, (0.00033, 0.001, 0.003)),
        ({0.001: 0.5}, (0.00033, 0.003)),
        ({0.00033: 0.4, 0.001: 0.5, 0.003: 0.4}, ()),
        ({0.00033: 0.4, 0.001: 0.5, 0.003: 0.6}, (0.009,)),
        ({0.00033: 0.6, 0.001: 0.5, 0.003: 0.4}, (0.00011,)),
        # a rate that diverged was tried, and has lost
        ({0.00033: 0.4, 0.001: 0.5, 0.003: None}, ()),
        ({0.00033: 0.4, 0.001: 0.5, 0.003: 0.6, 0.009: None}, ()),
        ({0.00033: 0.4, 0.001: None, 0.003: None}, (0.00011,)),
        ({0.00033: None, 0.001: 0.5, 0.003: 0.6}, (0.009,)),
        ({0.00033: None, 0.001: None, 0.003: None}, (0.00011,)),
        # where equals win, none of them is at the edge
        ({0.00033: 0.5, 0.001: 0.5, 0.003: 0.4}, (0.00011,)),
        ({0.00033: 0.4, 0.001: 0.5, 0.003: 0.5}, (0.009,)),
        ({0.00033: 0.4, 0.001: 0.5, 0.003: 0.5, 0.009: 0.4}, ()),
        ({0.00033: 0.5, 0.001: 0.5, 0.003: 0.5}, (0.009,)),
    ],
)
def test_the_grid_is_widened_where_the_winner_is_at_its_edge(tried: dict, further: tuple):
    assert next_rates(1e-3, tried) == further
    assert (find_winner(1e-3, tried) is None) == bool(further)


def test_of_equal_rates_the_smaller_one_wins():
    assert choose({0.003: 0.5, 0.001: 0.5, 0.009: 0.4}) == 0.001
    assert choose({0.003: None}) is None


def test_the_table_names_the_rates_that_were_equal_to_the_winning_one():
    rows = rows_of([0.6, 0.6, 0.6], [0.5, 0.5, 0.5])
    extra = row("vit", "rate", 0.009, 0, held_out_accuracy=0.1)
    rows = [{**each, "held_out_accuracy": 0.4} if key_of(each) == EQUAL else each for each in rows]
    table = make_arm_table(toy(), [*rows, extra], 3)
    assert table.count("| 0.001 (0.003 was equal) |") == 1 and table.count("| 0.001 |") == 1


@pytest.mark.parametrize(
    ("accuracy", "last", "words"),
    [
        (lambda rate: rate, 0.24, "best: 0.24"),
        (lambda rate: -rate, 4e-6, "best: 4e-06"),
        (lambda rate: max(rate, 0.081), 0.24, "best: 0.24"),
        (lambda rate: min(rate, 0.08), 0.24, "best: 0.081, 0.24"),
        (lambda rate: None, 4e-6, "best: none, all diverged"),
    ],
)
def test_the_search_stops_after_four_widenings(accuracy: Callable, last: float, words: str):
    tried: dict = {}
    while rates := next_rates(1e-3, tried):
        tried |= {rate: accuracy(rate) for rate in rates}
    assert len(tried) == 7 and last in tried
    with pytest.raises(ValueError, match=f"after 4 widenings: .*{words}. Change the learning rate"):
        find_winner(1e-3, tried)


@pytest.mark.parametrize("name", STUDIES)
def test_the_test_set_is_not_opened_by_runs_that_compare_rates(name: str, monkeypatch):
    def refuse(*_):
        raise AssertionError("the test set was opened")

    monkeypatch.setattr(inputs, "_make_validation_source", refuse)
    for arm in study_of(name, "smoke").arms.values():
        config = make_rate_config(arm.config, 0.5)
        training, held_out = make_sources(config.run.data, config.run.seed)
        assert held_out.num_examples == 144 and config.run.data.test == ""
        assert config.run.seed == 0 and config.run.optimizer.learning_rate == 0.5
        assert config.run.loop.total_steps == arm.config.run.loop.total_steps
        with pytest.raises(AssertionError, match="was opened"):
            make_sources(replace(arm.config.run.data, held_out=0.0), 0)


@pytest.mark.parametrize("name", STUDIES)
def test_runs_that_are_tested_open_the_test_set_at_their_end_alone(name: str):
    for arm in study_of(name).arms.values():
        run = make_seed_config(arm.config, 0.5, 7).run
        assert run.seed == 7 and run.optimizer.learning_rate == 0.5
        assert run.data == arm.config.run.data
        # with a held-out part, evaluations on the way are on this part
        assert bool(run.loop.evaluate_every) == bool(run.data.held_out) == (name == "data_size")


def test_a_run_that_compares_rates_measures_nothing_on_the_test_set(tmp_path: Path, monkeypatch):
    config = make_rate_config(config_of("hybrid", "vit_small", "smoke"), 0.003)
    model = build(config, classifier_activation=None)
    curve = {"train/images_per_second": [(30, 7.0)], runs.VALIDATION: [(30, 0.5), (60, 0.25)]}
    procedure = {type(config): lambda *_: {"state_sha256": "abc", runs.VALIDATION: 0.25}}
    monkeypatch.setattr(runs, "PROCEDURES", procedure)
    monkeypatch.setattr(runs, "read_metrics", lambda _: curve)
    monkeypatch.setattr(runs, "load_trained", lambda *_: (model, 60))
    monkeypatch.setattr(runs, "connect", lambda _: None)
    for name in ("accuracy", "extract"):
        monkeypatch.setattr(runs, name, None)
    runs.train_and_validate(config, tmp_path)
    assert json.loads((tmp_path / "measured.json").read_text()) == {
        "held_out_accuracy": 0.5,
        "learning_rate": 0.003,
        "seed": 0,
        "steps": 60,
        "parameters": model.count_params(),
        "images_per_second": 7.0,
        "processor": name_cpu(),
        "state_sha256": "abc",
        "training_images": 1437 - 144,
    }


def test_a_run_that_held_images_out_is_tested_on_the_test_set(tmp_path: Path, monkeypatch):
    """The held-out images have chosen when it ended; the examples of the few-shot measurement are
    drawn from the whole training set.
    """
    study = study_of("data_size", "smoke")
    config = make_seed_config(next(iter(study.arms.values())).config, 0.003, 1)
    assert config.run.data.held_out
    asked = []

    def measure_accuracy(model, source, **how):
        asked.append((source.name, source.num_examples))
        return {"top1": 0.75}

    def measure_fewshot(model, train, test, shots, how):
        asked.append((train.num_examples, test.name, test.num_examples))
        return {"fewshot_accuracy": 0.25}

    curve = {"train/images_per_second": [(30, 7.0)], runs.VALIDATION: [(30, 0.5), (60, 0.25)]}
    procedure = {type(config): lambda *_: {"state_sha256": "abc", runs.VALIDATION: 0.25}}
    monkeypatch.setattr(runs, "PROCEDURES", procedure)
    monkeypatch.setattr(runs, "read_metrics", lambda _: curve)
    monkeypatch.setattr(runs, "load_trained", lambda *_: (build(config), 60))
    monkeypatch.setattr(runs, "accuracy", measure_accuracy)
    monkeypatch.setattr(runs, "measure_fewshot", measure_fewshot)
    train_and_measure(config, tmp_path)
    assert asked == [("digits test", 360), (1437, "digits test", 360)]
    found = json.loads((tmp_path / "measured.json").read_text())
    assert (found["test_accuracy"], found["held_out_accuracy"]) == (0.75, 0.5)
    assert found["test_images"] == 360
    assert found["training_images"] == make_sources(config.run.data, 1)[0].num_examples < 1437


# ---- the rows, and which trials are run


class StandIn:
    """A pool whose trials train nothing; their accuracies depend on what they try."""

    def __init__(
        self,
        on_end: Callable = lambda _: None,
        backwards: bool = False,
        cpu: str | None = None,
    ):
        self.on_end, self.backwards, self.cpu, self.ran = on_end, backwards, cpu, []

    def run(self, trials: list, where: Path) -> None:
        for trial in [*trials][:: -1 if self.backwards else 1]:
            if not trial.is_over():
                self.ran.append(trial.name)
                finish(trial, self.cpu)
                self.on_end(trial)


def finish(trial, cpu: str | None = None) -> None:
    """Writes what a process leaves in the folder of its trial."""
    trial.folder.mkdir(parents=True, exist_ok=True)
    (trial.folder / "trial.json").write_text('{"seconds": 1.5, "cpu_seconds": 2.5}')
    tries, path = trial.tries, trial.folder / trial.result
    sha = hashlib.sha256(repr(sorted(tries.items())).encode()).hexdigest()
    measured = {"state_sha256": sha, "learning_rate": tries["learning_rate"], "processor": cpu}
    best = {"vit": 0.001, "resnet": 0.009}.get(tries["arm"])  # the grid of the ResNet is widened
    if tries["kind"] == "start":
        measured |= {"fewshot_accuracy": 0.5, "fewshot_draws": [0.5], "training_images": 160}
    elif tries["kind"] == "rate" and tries["learning_rate"] > 0.02:
        lost = f"Step 7: the loss is nan. Last good checkpoint: {trial.folder}. Try a lower rate."
        (trial.folder / "trial.json").write_text(json.dumps({"diverged": lost}))
        return
    elif tries["kind"] == "rate":
        measured |= {"held_out_accuracy": 1 / 3 - abs(math.log(tries["learning_rate"] / best)) / 30}
    else:
        measured |= {
            "test_accuracy": 0.6 + tries["seed"] / 30 + (tries["arm"] == "vit") / 7,
            "fewshot_accuracy": 0.1 + 0.2,
            "fewshot_draws": [0.1 + 0.2, 1 / 3],
            **{"shots": 10, "training_images": 90, "test_images": 30, "parameters": 1234},
            **{"steps": 60, "images_per_second": 100 / 3},
        }
    path.write_text(json.dumps(measured))


def schedule_of(folder: Path, results: Path, study: Study | None = None) -> Schedule:
    plan = plan_of(3)
    if study is not None:
        plan |= {"starts": {name: {} for name in study.starts}}
    schedule = Schedule(
        study=toy((CLAIM,)) if study is None else study,
        folder=folder,
        results=Results(results),
        command=(f"{ROOT}/experiments/ablations.py", f"--data={folder}/data"),
        shown_command=("experiments/ablations.py", "--data=/data/cifar10", "--workdir=runs/toy"),
    )
    schedule.results.claim(plan)
    return schedule


def run_all(folder: Path, results: Path, seeds: int = 3, **how) -> list[str]:
    """Runs what is left of the toy study, and returns the names of the trials that were run."""
    schedule = schedule_of(folder, results)
    pool = StandIn(schedule.record, **how)
    schedule.run_all(pool, seeds)
    return pool.ran


def test_first_the_rates_of_all_arms_then_the_seeds(tmp_path: Path):
    ran = run_all(tmp_path / "runs", tmp_path)
    assert ran[:6] == [
        f"{arm}/rate_{rate}" for arm in ("vit", "resnet") for rate in (0.00033, 0.001, 0.003)
    ]
    assert ran[6:8] == ["resnet/rate_0.009", "resnet/rate_0.027"]  # the second one diverges
    assert ran[8:] == [f"{arm}/seed_{seed}" for seed in range(3) for arm in ("vit", "resnet")]
    rows = Results(tmp_path).rows()
    assert {row["learning_rate"] for row in rows if row["kind"] == "seed"} == {0.001, 0.009}
    assert rows[-1]["command"] == (
        "python experiments/ablations.py --data=/data/cifar10 --workdir=runs/toy "
        "--only=resnet/seed_2 --rate=0.009"
    )


def test_rows_are_sorted_and_exact_and_name_no_folder_of_the_machine(tmp_path: Path):
    run_all(tmp_path / "runs", tmp_path / "one")
    run_all(tmp_path / "others", tmp_path / "other", backwards=True)
    text = (tmp_path / "one" / "trials.csv").read_bytes()
    assert text == (tmp_path / "other" / "trials.csv").read_bytes()
    assert text.splitlines()[0].decode() == ",".join(COLUMNS)
    rows = Results(tmp_path / "one").rows()
    assert [(row["arm"], row["kind"]) for row in rows] == (
        [("vit", "rate")] * 3 + [("resnet", "rate")] * 5 + [("vit", "seed")] * 3
    ) + [("resnet", "seed")] * 3
    assert rows[-1]["fewshot_accuracy"] == 0.1 + 0.2 and b"0.30000000000000004" in text
    assert rows[-1]["fewshot_draws"] == [0.1 + 0.2, 1 / 3] and rows[-1]["seconds"] == 1.5
    assert rows[-1]["cpu_seconds"] == 2.5
    assert rows[7]["diverged"] == "Step 7: the loss is nan." and rows[7]["seconds"] is None
    for path in (tmp_path / "one").iterdir():
        assert str(tmp_path).encode() not in path.read_bytes()


def test_a_trial_that_has_a_row_is_not_run_again_on_another_machine(tmp_path: Path):
    run_all(tmp_path / "runs", tmp_path)
    text = (tmp_path / "trials.csv").read_bytes()
    lines = text.splitlines(keepends=True)
    assert run_all(tmp_path / "fresh", tmp_path) == []
    lost = [
        line
        for line in lines
        if b"vit/seed_1" in line or b"resnet/rate_0.009" in line or b"resnet/rate_0.027" in line
    ]
    (tmp_path / "trials.csv").write_bytes(b"".join(line for line in lines if line not in lost))
    assert run_all(tmp_path / "fresh", tmp_path) == [
        "resnet/rate_0.009",
        "resnet/rate_0.027",
        "vit/seed_1",
    ]
    assert (tmp_path / "trials.csv").read_bytes() == text


def test_a_trial_that_was_killed_before_its_row_was_written_gets_one(tmp_path: Path):
    schedule = schedule_of(tmp_path / "runs", tmp_path)
    trial = schedule.make_trial("vit", "rate", 0.001)
    finish(trial)
    ran = run_all(tmp_path / "runs", tmp_path)
    assert trial.name not in ran and len(set(ran)) == len(ran) == 13
    keys = [key_of(row) for row in Results(tmp_path).rows()]
    assert keys.count(key_of(trial.tries)) == 1 and len(keys) == 14
    (trial.folder / "trial.json").write_text('{"seconds": 9}')
    schedule.record(trial)
    assert [key_of(row) for row in Results(tmp_path).rows()] == keys


def test_what_has_finished_is_recorded_when_the_pool_stops(tmp_path: Path):
    schedule = schedule_of(tmp_path / "runs", tmp_path)

    def stop(trials, where):
        finish(trials[0])
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        schedule.run_all(SimpleNamespace(run=stop), 3)
    assert [key_of(row) for row in Results(tmp_path).rows()] == [("vit", "rate", 0.00033, 0)]


@pytest.mark.parametrize("wrong", ["learning_rate", "total_steps", "none"])
def test_a_run_with_another_config_is_not_taken_for_the_trial(wrong: str, tmp_path: Path):
    schedule = schedule_of(tmp_path / "runs", tmp_path)
    trial = schedule.make_trial("vit", "rate", 0.001)
    finish(trial)
    config = schedule.make_config(trial)
    run = config.run
    if wrong == "learning_rate":
        run = replace(run, optimizer=replace(run.optimizer, learning_rate=0.5))
    elif wrong == "total_steps":
        run = replace(run, loop=replace(run.loop, total_steps=10))
    facts = {"config": describe_config(replace(config, run=run)), "versions": {}}
    (trial.folder / "config.json").write_text(json.dumps(facts))
    if wrong == "none":
        assert trial.name not in run_all(tmp_path / "runs", tmp_path)
        return
    with pytest.raises(ValueError, match=rf"(?s)another config:\n  run\S*{wrong}: there .*remove"):
        run_all(tmp_path / "runs", tmp_path)
    assert not Results(tmp_path).find(trial.tries)


def test_a_finished_run_is_not_that_of_another_config(tmp_path: Path, monkeypatch):
    config = make_rate_config(config_of("class_token", "gap", "smoke"), 0.01)
    facts = {"config": describe_config(config), "versions": {}}
    (tmp_path / "config.json").write_text(json.dumps(facts))
    (tmp_path / "measured.json").write_text('{"held_out_accuracy": 0.5}')
    monkeypatch.setattr(runs, "PROCEDURES", {})  # nothing can be trained
    runs.train_and_validate(config, tmp_path)
    with pytest.raises(ValueError, match="run.batch_size: there 32, here 7"):
        runs.train_and_validate(replace(config, run=replace(config.run, batch_size=7)), tmp_path)


def test_a_finished_run_is_not_that_of_another_start(tmp_path: Path):
    """The config of a fine-tuning is recorded with the hash of its weights."""
    arm = config_of("transfer", "pretrained_70", "smoke")
    row = row_of(arm.model, arm.variant)
    weights, folder = tmp_path / "model.npz", tmp_path / "run"
    config = make_seed_config(replace(arm, weights=str(weights)), 0.01, 0)

    def train_start(seed: int) -> None:
        keras.utils.set_random_seed(seed)
        shape = (config.image_size, config.image_size, 3)
        model = keras_vit.application(row)(
            weights=None, include_top=False, input_shape=shape, **config.model_options
        )
        keras_vit.save_checkpoint(model, weights)

    train_start(0)
    folder.mkdir()
    recorded, _ = settle(config)
    facts = {"config": describe_config(recorded), "versions": {}}
    (folder / "config.json").write_text(json.dumps(facts))
    runs.check_run(config, folder)
    train_start(0)
    runs.check_run(config, folder)
    moved = tmp_path / "moved.npz"  # as with other paths of the folders, or on another machine
    shutil.copy(weights, moved)
    runs.check_run(replace(config, weights=str(moved)), folder)
    train_start(1)
    with pytest.raises(ValueError, match=r"another config:\n  weights: there .*sha256"):
        runs.check_run(config, folder)


def test_a_finished_run_belongs_to_its_images_wherever_they_are(tmp_path: Path):
    here, moved, other = (tmp_path / name for name in ("here", "moved", "other"))
    for part in ("train", "test"):
        for label in ("cat", "dog"):
            for index in range(10):
                path = here / part / label / f"{index}.png"
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(bytes([index]))
    shutil.copytree(here, moved)
    shutil.copytree(here, other)
    (other / "train" / "cat" / "0.png").write_bytes(b"changed")
    arm = config_of("class_token", "gap")

    def config_on(folder: Path, batch_size: int = 128):
        data = replace(arm.run.data, name=str(folder))
        run = replace(arm.run, data=data, batch_size=batch_size)
        return make_rate_config(replace(arm, run=run), 0.01)

    config = config_on(here)
    data = data_sha256(make_sources(config.run.data, config.run.seed))
    facts = {"config": describe_config(config), "versions": {}, "data_sha256": data}
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.json").write_text(json.dumps(facts))
    for folder in (here, moved, f"{here}/", here / ".." / "moved"):
        runs.check_run(config_on(folder), tmp_path / "run")
    with pytest.raises(ValueError, match="The data have changed"):
        runs.check_run(config_on(other), tmp_path / "run")
    with pytest.raises(ValueError, match="run.batch_size: there 128, here 7"):
        runs.check_run(config_on(moved, 7), tmp_path / "run")


def test_the_config_of_a_trial_names_the_weights_of_its_seed(tmp_path: Path):
    study = study_of("resolution", "smoke")
    schedule = schedule_of(tmp_path, tmp_path, study)
    for arm, seed, weights in (
        ("interpolated", 2, "fractals/seed_2/model.npz"),
        ("new", 2, "new/seed_2/new_positions.npz"),
    ):
        config = schedule.make_config(schedule.make_trial(arm, "seed", 0.01, seed))
        assert config.weights == str(tmp_path / weights)
        assert (config.run.seed, config.run.optimizer.learning_rate) == (seed, 0.01)
        rate = schedule.make_config(schedule.make_trial(arm, "rate", 0.03))
        assert rate.run.data.held_out and not rate.run.data.test
    start = schedule.make_config(schedule.make_trial("fractals", "start", 0.005, 1))
    assert start == make_start_config(study.starts["fractals"], 1)


def test_a_start_whose_row_was_lost_gets_it_again(tmp_path: Path):
    study = with_starts(toy())
    schedule = schedule_of(tmp_path / "runs", tmp_path, study)
    schedule.run_all(StandIn(schedule.record), 2)
    text = (tmp_path / "trials.csv").read_text()
    kept = [line for line in text.splitlines(keepends=True) if "only=large/seed_1" not in line]
    (tmp_path / "trials.csv").write_text("".join(kept))
    pool = StandIn(schedule.record)
    schedule.run_all(pool, 2)
    assert pool.ran == [] and (tmp_path / "trials.csv").read_text() == text
    # on another machine it is trained again
    (tmp_path / "trials.csv").write_text("".join(kept))
    other = schedule_of(tmp_path / "fresh", tmp_path, study)
    pool = StandIn(other.record)
    other.run_all(pool, 2)
    assert pool.ran == ["large/seed_1"] and (tmp_path / "trials.csv").read_text() == text


def test_a_study_does_not_lose_seeds(tmp_path: Path):
    run_all(tmp_path / "runs", tmp_path)
    results = Results(tmp_path)
    results.claim(plan_of(5))
    with pytest.raises(ValueError, match=r"has runs of 3 seeds.*pass --seeds=3. Received: 2"):
        results.claim(plan_of(2))
    results.claim(plan_of(3))  # none of the other two was run


def test_an_arm_without_a_rate_inside_the_grid_ends_the_study(tmp_path: Path, monkeypatch):
    monkeypatch.setattr("ablations.rates.WIDENINGS", 1)
    with pytest.raises(ValueError, match="^resnet: the best learning rate is not inside the grid"):
        run_all(tmp_path / "runs", tmp_path)
    assert not any("seed" in row["kind"] for row in Results(tmp_path).rows())


def test_a_folder_with_rows_of_another_plan_is_refused(tmp_path: Path):
    results = Results(tmp_path)
    results.claim({**plan_of(3), "study": "wrong"})
    results.claim(plan_of(3))  # the first was a mistake: nothing had been measured
    run_all(tmp_path / "runs", tmp_path)
    results.claim(plan_of(5))
    assert results.plan()["seeds"] == 5
    other = {**plan_of(3), "version": "0.2", "arms": {"vit": {"depth": 9}, "resnet": {"depth": 1}}}
    with pytest.raises(
        ValueError,
        match="another ablation:\n  arms.vit.depth: there 0, here 9\n  version: there 0.1, here 0.2",
    ):
        results.claim(other)
    assert results.plan() == plan_of(5)


def change_last(column: str, value: str) -> Callable:
    """Changes a value in the last line, the third seed of the ResNet."""

    def change(lines: list) -> list:
        (cells,) = csv.reader(lines[-1:])
        cells[[*COLUMNS].index(column)] = value
        text = io.StringIO()
        csv.writer(text, lineterminator="").writerow(cells)
        return [*lines[:-1], text.getvalue()]

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda lines: [lines[0] + ",more", *lines[1:]], "must have the columns arm, kind"),
        (lambda lines: [*lines, lines[-1]], "has two rows for"),
        (lambda lines: [*lines[:-1], "resnet,seed"], "must have the columns arm, kind"),
        (change_last("test_accuracy", ""), "has neither test_accuracy nor `diverged`"),
        (change_last("test_accuracy", "nan"), "test_accuracy must be between 0 and 1: nan"),
        (change_last("fewshot_accuracy", "54.4"), "fewshot_accuracy must be between 0 and 1"),
        (change_last("learning_rate", ""), "needs arm, kind, learning_rate, seed"),
        (change_last("kind", "sead"), "'sead' is no kind: one of start, rate, seed"),
        (change_last("steps", "6o"), "'6o' is no steps .*only=resnet/seed_2"),
    ],
)
def test_a_damaged_table_is_refused(change: Callable, message: str, tmp_path: Path):
    run_all(tmp_path / "runs", tmp_path)
    lines = (tmp_path / "trials.csv").read_text().splitlines()
    (tmp_path / "trials.csv").write_text("\n".join(change(lines)) + "\n")
    with pytest.raises(ValueError, match=message):
        Results(tmp_path).rows()


def test_each_start_is_trained_once_per_seed_and_only_if_a_trial_needs_it(tmp_path: Path):
    study = with_starts(toy())
    schedule = schedule_of(tmp_path / "runs", tmp_path, study)
    pool = StandIn(schedule.record)
    schedule.run_all(pool, 1)
    assert pool.ran[:3] == ["large/seed_0", "small/seed_0", "vit/rate_0.00033"]
    assert pool.ran.count("large/seed_0") == 1 and "large/seed_1" not in pool.ran
    results = Results(tmp_path)
    # in the order of the plan, before all arms
    assert [key_of(row) for row in results.rows()][:3] == [
        ("small", "start", 0.005, 0),
        ("large", "start", 0.005, 0),
        ("vit", "rate", 0.00033, 0),
    ]
    assert results.rows()[0]["command"] == (
        "python experiments/ablations.py --data=/data/cifar10 --workdir=runs/toy "
        "--only=small/seed_0"
    )
    # on another machine nothing is left to do, so no start is trained
    fresh = schedule_of(tmp_path / "fresh", tmp_path, study)
    pool = StandIn(fresh.record)
    fresh.run_all(pool, 1)
    assert pool.ran == []
    # one more seed needs its own starts, not those of seed 0
    fresh.run_all(pool, 2)
    assert pool.ran == ["large/seed_1", "small/seed_1", "vit/seed_1", "resnet/seed_1"]
    # only the start of the trial that is left
    text = (tmp_path / "trials.csv").read_text()
    lines = [line for line in text.splitlines(keepends=True) if "only=vit/seed_0" not in line]
    (tmp_path / "trials.csv").write_text("".join(lines))
    other = schedule_of(tmp_path / "third", tmp_path, study)
    pool = StandIn(other.record)
    other.run_all(pool, 2)
    assert pool.ran == ["large/seed_0", "vit/seed_0"]
    assert (tmp_path / "trials.csv").read_text() == text


def test_a_start_must_have_the_weights_that_the_rows_started_from(tmp_path: Path):
    study = with_starts(toy())
    schedule = schedule_of(tmp_path / "runs", tmp_path, study)
    schedule.run_all(StandIn(schedule.record), 1)
    text = (tmp_path / "trials.csv").read_text()
    sha = next(row for row in Results(tmp_path).rows() if row["arm"] == "large")["state_sha256"]
    lines = [line for line in text.splitlines(keepends=True) if "only=vit/seed_0" not in line]
    (tmp_path / "trials.csv").write_text("".join(lines).replace(sha, "0" * 64))
    with pytest.raises(ValueError, match=f"state sha256 {sha} instead of {'0' * 64}"):
        schedule.run_all(StandIn(), 1)


def test_a_start_that_diverges_ends_the_study_and_has_a_row(tmp_path: Path):
    schedule = schedule_of(tmp_path / "runs", tmp_path, with_starts(toy()))

    class Diverging(StandIn):
        def run(self, trials, where):
            for trial in trials:
                trial.folder.mkdir(parents=True, exist_ok=True)
                note = {"diverged": f"Step 7: the loss is nan. Last good: {trial.folder}."}
                (trial.folder / "trial.json").write_text(json.dumps(note))
                self.on_end(trial)

    with pytest.raises(Diverged, match="^large/seed_0 diverged, .*Step 7.*\nsmall/seed_0 diverged"):
        schedule.run_all(Diverging(schedule.record), 1)
    rows = Results(tmp_path).rows()
    assert {row["diverged"] for row in rows} == {"Step 7: the loss is nan."} and len(rows) == 2


def test_starts_are_repeated_with_the_sample_and_compared(tmp_path: Path, capsys):
    study = with_starts(toy())
    schedule = schedule_of(tmp_path / "runs", tmp_path, study)
    schedule.run_all(StandIn(schedule.record), 1)
    text = (tmp_path / "trials.csv").read_bytes()
    pool = StandIn()
    assert schedule.repeat(pool, 1)
    assert [name.partition("/")[2] for name in pool.ran] == ["seed_0", "seed_0"]
    start, arm = pool.ran
    assert study.arms[arm.partition("/")[0]].start == start.partition("/")[0]
    assert f"| {start} | same | same | same |" in capsys.readouterr().out
    sha = next(each for each in Results(tmp_path).rows() if each["arm"] == start[:-7])
    changed = text.replace(sha["state_sha256"].encode(), b"0" * 64)
    (tmp_path / "trials.csv").write_bytes(changed)
    assert not schedule.repeat(StandIn(), 1)
    assert f"| {start} | DIFFERENT | same | same |" in capsys.readouterr().out


def test_a_sample_of_trials_is_run_again_and_compared(tmp_path: Path, capsys):
    run_all(tmp_path / "runs", tmp_path)
    text = (tmp_path / "trials.csv").read_bytes()
    schedule, pool = schedule_of(tmp_path / "runs", tmp_path), StandIn()
    assert schedule.repeat(pool, 2)
    assert len(pool.ran) == 2 and all("/seed_" in name for name in pool.ran)
    assert (tmp_path / "runs" / "again" / pool.ran[0] / "measured.json").exists()
    said = capsys.readouterr().out
    assert f"| {pool.ran[0]} | same | same | same |" in said and "DIFFERENT" not in said
    sha = next(row for row in Results(tmp_path).rows() if row["kind"] == "seed")["state_sha256"]
    (tmp_path / "trials.csv").write_bytes(text.replace(sha.encode(), b"0" * 64))
    assert not schedule.repeat(pool, 99)
    assert len(pool.ran) == 2 + 6  # all are run, also those of the first sample
    said = capsys.readouterr().out
    assert "| vit/seed_0 | DIFFERENT | same | same |" in said and "Remove it to draw" in said
    assert not schedule.repeat(pool, 99) and len(pool.ran) == 2 + 6  # what differs is kept
    with pytest.raises(ValueError, match="another repetition, of 6 trials, which .* differed"):
        schedule.repeat(pool, 1)


def test_the_sample_is_another_one_each_time_and_that_of_before_if_interrupted(tmp_path: Path):
    run_all(tmp_path / "runs", tmp_path)
    schedule = schedule_of(tmp_path / "runs", tmp_path)
    asked = []

    def stop(trials, where):
        asked.append([trial.name for trial in trials])
        finish(trials[0])
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        schedule.repeat(SimpleNamespace(run=stop), 3)
    with pytest.raises(
        ValueError, match="another repetition, of 3 trials, which is unfinished .* --again=3"
    ):
        schedule.repeat(StandIn(), 2)
    pool = StandIn()
    assert schedule.repeat(pool, 3) and pool.ran == asked[0][1:]
    samples = set()
    for _ in range(20):  # of 20 samples
        pool = StandIn()
        assert schedule.repeat(pool, 3)
        samples.add(frozenset(pool.ran))
    assert len(samples) > 1 and all(len(sample) == 3 for sample in samples)


def test_what_was_not_tested_is_not_repeated(tmp_path: Path):
    schedule = schedule_of(tmp_path / "runs", tmp_path)
    schedule.run(StandIn(schedule.record), schedule.trials_of_rates())
    with pytest.raises(ValueError, match="no tested trial yet. Run the study without `--again`"):
        schedule.repeat(StandIn(), 1)


def test_a_trial_of_another_processor_may_differ_and_it_is_said(tmp_path: Path, capsys):
    """Only of trials that do differ; a start of another processor is not taken for that of the
    rows.
    """
    study = with_starts(toy())
    schedule = schedule_of(tmp_path / "runs", tmp_path, study)
    schedule.run_all(StandIn(schedule.record, cpu="AMD EPYC"), 1)
    assert schedule.repeat(StandIn(cpu="Intel Xeon"), 1)
    assert "Computed on" not in capsys.readouterr().out
    text = (tmp_path / "trials.csv").read_text()
    start = next(row for row in Results(tmp_path).rows() if row["arm"] == "large")
    (tmp_path / "trials.csv").write_text(text.replace(start["state_sha256"], "0" * 64))
    assert not schedule.repeat(StandIn(cpu="Intel Xeon"), 99)
    said = capsys.readouterr().out
    assert said.count("Computed on AMD EPYC, and again on Intel Xeon. Another processor") == 1
    other = schedule_of(tmp_path / "elsewhere", tmp_path, study)
    lines = (tmp_path / "trials.csv").read_text().splitlines(keepends=True)
    kept = "".join(line for line in lines if "only=vit/seed_0" not in line)
    (tmp_path / "trials.csv").write_text(kept)
    with pytest.raises(ValueError, match=f"{'0' * 64}. Computed on AMD EPYC, and again on an unk"):
        other.run_all(StandIn(), 1)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        (
            "processor\t: 0\nmodel\t\t: 1\nmodel name\t: AMD EPYC 7B13 \nflags\t: fpu\n",
            "AMD EPYC 7B13, model 1",
        ),
        ("model name\t: AMD EPYC\nflags\t: fpu\n", "AMD EPYC"),
        ("processor\t: 0\nBogoMIPS\t: 50.00\n", None),
        ("model name\t: \nflags\t: fpu\n", None),
        (None, None),
    ],
)
def test_a_cpu_has_a_name(text: str | None, name: str | None, tmp_path: Path, monkeypatch):
    """Linux on ARM and other systems tell at least the architecture."""
    file = tmp_path / "cpuinfo"
    if text is not None:
        file.write_text(text)
    monkeypatch.setattr(processor, "CPU_INFO", file)
    monkeypatch.setattr(processor.platform, "processor", lambda: "")
    monkeypatch.setattr(processor.platform, "machine", lambda: "aarch64")
    assert name_cpu() == (name or "aarch64")
    devices = Devices(kind="one", num_replicas=1, description="NVIDIA H100")
    assert name_processor(devices) == name_cpu()
    monkeypatch.setattr(processor, "has_accelerator", lambda: True)
    assert name_processor(devices) == "NVIDIA H100"


def test_a_trial_that_diverges_when_run_again_is_different(tmp_path: Path):
    run_all(tmp_path / "runs", tmp_path)
    pool = SimpleNamespace(run=lambda *_: None)  # leaves no results
    assert not schedule_of(tmp_path / "runs", tmp_path).repeat(pool, 1)


# ---- the report from the rows alone


def write_smoke_study(folder: Path) -> dict:
    """A finished study in its smoke form, as if it had been run on another machine."""
    plan = {**make_plan("optimizer", "smoke", {}, {}, seeds=3), "data_sha256": "0"}
    results = Results(folder)
    results.claim(plan)
    for arm, config in plan["arms"].items():
        center = config["run"]["optimizer"]["learning_rate"]
        for rate, value in zip(make_grid(center), (0.3, 0.4, 0.2), strict=True):
            results.record(row(arm, "rate", rate, 0, held_out_accuracy=value))
        for seed in range(3):
            (tested,) = (each for each in rows_of([0.5 + seed / 30], []) if each["kind"] == "seed")
            tested |= {"arm": arm, "seed": seed, "learning_rate": make_grid(center)[1]}
            results.record(tested)
    return plan


def test_the_report_is_made_from_the_rows_alone_with_the_same_bytes(tmp_path: Path):
    plan = write_smoke_study(tmp_path)
    study, files = study_of_plan(plan), ("ablation.md", "ablation.png")
    command = "python " + " ".join([*show_command(plan), "--seeds=3"])
    write_report(tmp_path, study, Results(tmp_path).rows(), plan, command)
    before = [(tmp_path / name).read_bytes() for name in files]
    for name in files:
        (tmp_path / name).unlink()
    told = ablations("--report", f"--results={tmp_path}")
    assert told.returncode == 0 and "ablation.md" in told.stdout, told.stderr
    assert [(tmp_path / name).read_bytes() for name in files] == before
    assert b"not judged: a smoke run" in before[0] and str(tmp_path).encode() not in before[0]


def test_a_plan_of_other_configs_has_no_report(tmp_path: Path):
    plan = write_smoke_study(tmp_path)
    plan["arms"]["adam_small"]["run"]["batch_size"] = 7
    with pytest.raises(ValueError, match="arms.adam_small.run.batch_size: there 7, here 32"):
        study_of_plan(plan)


def test_a_plan_from_before_starts_had_names_is_that_of_a_study_without_starts(tmp_path: Path):
    plan = write_smoke_study(tmp_path)
    assert plan.pop("starts") is None
    assert [*study_of_plan({**plan, "start": None}).arms] == [*plan["arms"]]
    Results(tmp_path).claim({**plan, "start": None})


def test_a_plan_of_another_start_has_no_report():
    plan = make_plan("transfer", "smoke", {}, {}, seeds=3)
    plan["starts"]["fractals"]["run"]["batch_size"] = 7
    with pytest.raises(ValueError, match="starts.fractals.run.batch_size: there 7, here 32"):
        study_of_plan(plan)


def test_every_arm_keeps_its_test_set():
    with pytest.raises(ValueError, match="`run.data.test` must not be empty: every arm is tested"):
        make_plan("positions", "cifar10", FOLDER, {"run.data.test": ""}, seeds=3)


@pytest.mark.parametrize("name", STUDIES)
def test_a_tenth_of_each_run_is_warm_up(name: str):
    study = make_study(name, "cifar10", FOLDER)
    for config in (*(arm.config for arm in study.arms.values()), *study.starts.values()):
        steps, optimizer = config.run.loop.total_steps, config.run.optimizer
        assert optimizer.warmup_steps == steps // 10


def test_a_plan_names_no_folder_and_keeps_the_changes():
    folder = {"kind": "image_folder", "name": "/home/me/cifar10"}
    plan = make_plan("self_supervision", "cifar10", folder, {}, seeds=3)
    assert "/home" not in json.dumps(plan) and len(plan["starts"]) == 3
    plan = make_plan("positions", "cifar10", folder, {"run.batch_size": "64"}, seeds=3)
    assert "/home" not in json.dumps(plan)
    assert plan == make_plan("positions", "cifar10", FOLDER, {"run.batch_size": "64"}, seeds=3)
    assert study_of_plan(plan).arms["none_stem"].config.run.batch_size == 64
    assert show_command(plan) == [
        "experiments/ablations.py",
        "--study=positions",
        "--size=cifar10",
        "--data=/data/cifar10",
        "--workdir=runs/positions",
        "--config.run.batch_size=64",
    ]
    tfds = make_plan("crop", "cifar10", {"kind": "tfds", "name": "cifar10"}, {}, seeds=3)
    assert "--data=tfds:cifar10" in show_command(tfds)


# ---- the page of all results


def write_page(folder: Path) -> str:
    (folder / "docs").mkdir(exist_ok=True)
    return write_results(folder / "results", folder / "docs").read_text()


def test_without_results_the_page_says_that_no_study_has_run(tmp_path: Path):
    page = write_page(tmp_path)
    assert page.count("| not run | - |") == len(STUDIES) and "## " not in page
    assert "| all studies |  |  |  | 0.0 |" in page and "claim of the paper" not in page
    assert RULE[:40] in page.replace("\n", " ")
    assert [path.name for path in (tmp_path / "docs").iterdir()] == ["results.md"]


def test_the_page_is_made_of_the_rows_alone_with_the_same_bytes(tmp_path: Path):
    folder = tmp_path / "results" / "optimizer"
    write_smoke_study(folder)
    page = write_page(tmp_path)
    files = [tmp_path / "docs" / name for name in ("results.md", "results_optimizer.png")]
    before = [path.read_bytes() for path in files]
    assert before[1][:4] == b"\x89PNG" and str(tmp_path).encode() not in before[0]
    # 4 arms with 3 rates and 3 seeds
    assert "| finished: 24 trials | 0.0, of 0 of 24 trials |" in page
    assert "| trials | 24, finished |" in page
    for words in (
        "The paper (D.1, Table 7): Pre-trained with Adam, ResNets are better on average than",
        "| seeds | 3 |",
        "| test images | 3,000 |",
        "| Adam is better than SGD: smaller ResNet. | not judged: a smoke run |",
        "`python experiments/ablations.py --study=optimizer --size=smoke",
        "![Adam or SGD for ResNets](results_optimizer.png)",
        "| 53.33 ± 3.33 | 89.33 (ResNet50x1) |",
    ):
        assert words in page, words
    # written again, the page and the pictures have the same bytes
    for path in files:
        path.unlink()
    write_page(tmp_path)
    assert [path.read_bytes() for path in files] == before
    # a study whose rows are gone has no picture
    (folder / "trials.csv").unlink()
    assert "| not run |" in write_page(tmp_path) and not files[1].exists()


def test_an_unfinished_study_has_no_verdict_on_the_page(tmp_path: Path):
    folder = tmp_path / "results" / "optimizer"
    write_smoke_study(folder)
    plan = json.loads((folder / "study.json").read_text())
    (folder / "study.json").write_text(json.dumps({**plan, "seeds": 4}))
    rows = Results(folder).rows()
    assert count_trials(study_of_plan(plan), rows, 4) == (24, 28)
    # the grid is not complete: two seeds count for nothing, as their rate may not win
    lines = (folder / "trials.csv").read_text().splitlines(keepends=True)
    kept = [line for line in lines if not line.startswith("sgd_large,rate,")]
    (folder / "trials.csv").write_text("".join(kept))
    page = write_page(tmp_path)
    assert "| trials | 18 of 28: learning rates are still compared, and their grid may" in page
    assert "| 18 of 28 trials |" in page and "holds:" not in page
    section = "| [Adam or SGD for ResNets](#adam-or-sgd-for-resnets) |"
    smoke = "not judged: a smoke run | not judged: a smoke run |"
    assert f"{section} Adam is better than SGD: smaller ResNet. | {smoke}" in page
    assert f"|  | Adam is better than SGD: larger ResNet. | {smoke}" in page
    hours = [{**each, "seconds": 9000.0, "cpu_seconds": 5400.0} for each in rows[:2]]
    title = "processor hours, sum over the trials"
    facts = dict(list_facts("optimizer", study_of_plan(plan), hours, plan))
    assert facts[title] == "3.0"
    hours.append({**rows[2], "cpu_seconds": None})  # of a version that did not measure them
    hours[0]["processor"], hours[1]["processor"] = "Intel, model 7", "AMD EPYC"
    facts = dict(list_facts("optimizer", study_of_plan(plan), hours, plan))
    assert facts[title] == "3.0, of 2 of 3 trials"
    assert facts["processors"] == "AMD EPYC: 1 trial; Intel, model 7: 1 trial"


def test_the_page_says_what_is_left_of_a_study(monkeypatch):
    study, rows = toy(), rows_of([0.6, 0.7], [0.6, 0.7])
    assert describe_state(study, rows, 2) == "10, finished"
    assert describe_state(study, rows, 3) == "10 of 12: the runs of the arms are not finished"
    assert "learning rates are still compared" in describe_state(study, rows[1:], 2)
    at_edge = [{**each, "held_out_accuracy": each["learning_rate"]} for each in rows]
    monkeypatch.setattr("ablations.rates.WIDENINGS", 0)
    stuck = describe_state(study, at_edge, 2)
    assert stuck.startswith("6 of 10; the study has stopped: vit: the best learning rate is not")


def test_the_first_table_has_the_claims_of_the_paper_alone():
    ours = better("resnet", "vit", "ResNet is better.", is_published=False)
    study = toy((ours, CLAIM, difference("vit", "resnet", "A difference.")))
    rows = rows_of([0.60, 0.61, 0.62], [0.50, 0.52, 0.51])
    # 10, 9 and 11: 10 ± 4.303 * 1 / sqrt(3); few-shot half of that
    verdicts = ["holds: +5.0 [+3.8, +6.2] points", "holds: +10.0 [+7.5, +12.5] points"]
    assert judge_published(study, rows, plan_of(3)) == [["ViT is better.", *verdicts]]
    tested = judge_published(replace(study, metrics=("test",)), rows, plan_of(3))
    assert tested == [["ViT is better.", "-", verdicts[1]]]


@pytest.mark.parametrize("plan", ["of another study", "gone"])
def test_rows_without_their_plan_are_refused(plan: str, tmp_path: Path):
    write_smoke_study(tmp_path / "results" / "optimizer")
    if plan == "gone":
        (tmp_path / "results" / "optimizer" / "study.json").unlink()
    else:
        (tmp_path / "results" / "optimizer").rename(tmp_path / "results" / "crop")
    with pytest.raises(ValueError, match=r"study.json must be the plan of the study (crop|optim)"):
        write_page(tmp_path)


def test_the_script_writes_the_page(tmp_path: Path):
    script = [sys.executable, f"{ROOT}/experiments/results.py"]
    asked = [f"--results={tmp_path / 'none'}", f"--docs={tmp_path}"]
    done = warm.run(
        [*script, *asked], env=ENV, capture_output=True, text=True, timeout=HUNG_SECONDS
    )
    assert done.returncode == 0 and str(tmp_path / "results.md") in done.stdout, done.stderr
    assert "| not run |" in (tmp_path / "results.md").read_text()


def test_starts_count_as_trials():
    study = study_of("transfer")
    assert count_trials(study, [], 3) == (0, 6 * 3 + 3 * (6 + 1))
    rows = [row("fractals", "start", 0.005, seed) for seed in range(5)]
    assert count_trials(study, rows, 3) == (3, 6 * 3 + 3 * (6 + 1))


@pytest.mark.once
def test_the_committed_page_is_that_of_the_committed_rows(tmp_path: Path):
    page = write_results(ROOT / "experiments" / "results", tmp_path)
    assert page.read_bytes() == (ROOT / "docs" / "results.md").read_bytes(), (
        "run python experiments/results.py"
    )
    pictures = sorted(path.name for path in tmp_path.glob("results_*.png"))
    assert pictures == sorted(path.name for path in (ROOT / "docs").glob("results_*.png"))
    for name in pictures:
        ours, theirs = ((folder / name).read_bytes() for folder in (tmp_path, ROOT / "docs"))
        # another version of matplotlib draws other bytes, and writes its number into the file
        is_same = ours == theirs  # in the assertion, pytest would print all bytes
        is_comparable = f"version{matplotlib.__version__}".encode() in theirs
        assert is_same or not is_comparable, f"run python experiments/results.py: {name}"


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


def stamps(workdir: Path) -> dict[str, tuple[str, int]]:
    return {
        str(path): (hashlib.sha256(path.read_bytes()).hexdigest(), path.stat().st_mtime_ns)
        for path in workdir.glob("*/*/measured.json")
    }


SHORT = {"run.loop.total_steps": "80", "run.loop.checkpoint_every": "8"}


def write_rates(
    folder: Path,
    name: str = "class_token",
    changes: dict[str, str] = SHORT,
    left_out: tuple[str, ...] = ("class_token",),
) -> None:
    """Rows of all rates of a smoke study, of which the middle one wins, or is left to do."""
    plan = make_plan(name, "smoke", {}, changes, seeds=1)
    study = study_of_plan(plan)
    results = Results(folder)
    configs = [*(arm.config for arm in study.arms.values()), *study.starts.values()]
    results.claim({**plan, "data_sha256": data_of(*(config.run for config in configs))})
    for name, arm in study.arms.items():
        center = arm.config.run.optimizer.learning_rate
        grid = () if arm.rate_of else make_grid(center)
        for rate, value in zip(grid, (0.0, 0.5, 0.0), strict=True) if grid else ():
            if value == 0.0 or name not in left_out:
                results.record(row(name, "rate", rate, 0, held_out_accuracy=value))


@pytest.mark.slow
def test_a_study_that_was_killed_and_stopped_gives_what_one_in_a_row_gives(tmp_path: Path):
    study = ["--study=class_token", "--size=smoke", "--seeds=1"]
    study += [f"--config.{name}={text}" for name, text in SHORT.items()]
    workdir, kept = tmp_path / "runs", tmp_path / "results"
    write_rates(kept)
    asked = [*study, f"--workdir={workdir}", f"--results={kept}"]
    second = workdir / "gap" / "seed_0"

    with open(tmp_path / "stopped.txt", "w") as output:
        real = {**ENV, warm.REAL_CHILDREN: "1"}
        killed = warm.Popen(command(*asked), env=real, stdout=output, stderr=output)
        wait_for(lambda: any(second.glob("checkpoints/0*")) or killed.poll() is not None)
        (run,) = psutil.Process(killed.pid).children()  # it is a real child
        run.suspend()  # else it may end before the next start
        killed.kill()  # not the run that it has started
        killed.wait()
        # each row was written when its trial ended
        names = [f"{row['arm']}/{row['kind']}" for row in Results(kept).rows()]
        assert names.count("class_token/rate") == 3 and names[-1] == "class_token/seed"
        stopped = warm.Popen(command(*asked), env=ENV, stdout=output, stderr=output)
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
    finished = stamps(workdir)
    # as a kill of everything in the midst of their removal does, before the row is written
    (workdir / "class_token" / "seed_0" / "checkpoints").mkdir()
    lines = (kept / "trials.csv").read_text().splitlines(keepends=True)
    (kept / "trials.csv").write_text(
        "".join(line for line in lines if "class_token/seed_0" not in line)
    )
    page = (kept / "ablation.md").read_text()
    assert "not yet" in page and "not judged: a smoke run" in page

    gone_on = ablations(*asked)
    assert gone_on.returncode == 0, gone_on.stderr[-3000:]
    assert "Resuming from step" in (second / "log.txt").read_text()
    after = stamps(workdir)
    # no finished run is repeated
    assert len(finished) >= 2 and {path: after[path] for path in finished} == finished
    rows = [row for row in Results(kept).rows() if row["kind"] == "seed"]
    assert [row["arm"] for row in rows] == ["class_token", "gap", "gap_token_rate"]
    assert {row["learning_rate"] for row in rows} == {8e-4}
    # GAP at its own rate and at that of the class token, which are the same here
    assert rows[1]["state_sha256"] == rows[2]["state_sha256"] != rows[0]["state_sha256"]
    assert rows[0]["fewshot_accuracy"] == pytest.approx(np.mean(rows[0]["fewshot_draws"]))
    # nobody has measured the part of the run that outlived its study
    assert [row["seconds"] is None for row in rows] == [False, True, False]
    assert all(row["training_images"] == 1437 for row in rows)
    page = (kept / "ablation.md").read_text()
    numbers = [f"{100 * rows[0][name]:.2f}" for name in ("fewshot_accuracy", "test_accuracy")]
    assert f"{' | '.join(numbers)} |" in page
    assert (kept / "ablation.png").stat().st_size > 10_000
    assert not any(workdir.glob("*/*/checkpoints"))
    for path in kept.glob("*"):
        assert str(tmp_path).encode() not in path.read_bytes()

    # a run that was killed and resumed has the weights of an uninterrupted one
    again = ablations(*asked, "--again=3")
    assert again.returncode == 0, again.stdout + again.stderr[-3000:]
    assert again.stdout.count("| same | same | same |") == 3

    for other, message in (
        (["--study=crop", "--size=smoke"], "holds another ablation:"),
        (
            [*study, "--config.run.loop.total_steps=81"],
            "run.loop.total_steps: there 80, here 81",
        ),
        (["--study=class_token", "--data=tfds"], "holds another ablation:"),
    ):
        refused = ablations(*other, f"--workdir={workdir}", f"--results={kept}")
        assert (
            refused.returncode == 1
            and message in refused.stderr
            and "Traceback" not in refused.stderr
        )


def test_a_run_that_was_killed_while_its_checkpoints_were_removed_is_cleared_away(tmp_path: Path):
    for name, found in (("measured", {"test_accuracy": 0.5}), ("begun", {})):
        (tmp_path / name / "checkpoints" / "0000000002").mkdir(parents=True)
        (tmp_path / name / "checkpoints" / "0000000002" / "state.npz").write_bytes(b"")
        (tmp_path / name / "measured.json").write_text(json.dumps(found))
        runs.remove_checkpoints(tmp_path / name)
    assert [path.parent.name for path in tmp_path.glob("*/checkpoints")] == ["begun"]
    runs.remove_checkpoints(tmp_path / "measured")  # again: nothing is left to remove


@pytest.mark.slow
def test_a_study_with_a_start_goes_on_after_each_loss(tmp_path: Path):
    """Rows, runs and the weights of the start are lost in turn: what is left is not done again, and
    all that is done again has the same weights.
    """
    workdir, kept = tmp_path / "runs", tmp_path / "results"
    write_rates(kept, "resolution", {}, ())
    table = kept / "trials.csv"
    asked = ["--study=resolution", "--size=smoke", "--seeds=1"]
    asked += [f"--workdir={workdir}", f"--results={kept}"]

    def run() -> tuple[dict[str, str], str]:
        done = ablations(*asked)
        assert done.returncode == 0, done.stderr[-3000:]
        rows = [row for row in Results(kept).rows() if row["kind"] != "rate"]
        assert all(row["processor"] == name_cpu() for row in rows)
        return {row["arm"]: row["state_sha256"] for row in rows}, done.stdout

    def lose_rows(*arms: str) -> None:
        lines = table.read_text().splitlines(keepends=True)
        table.write_text(
            "".join(line for line in lines if not any(f"={arm}/seed_0" in line for arm in arms))
        )

    first, _ = run()
    assert [*first] == ["fractals", "same", "interpolated", "new"]
    assert len({*first.values()}) == 4
    finished = stamps(workdir)
    lose_rows("same", "new", "fractals")
    assert run()[0] == first and stamps(workdir) == finished
    lose_rows("new")
    shutil.rmtree(workdir / "fractals")
    again, output = run()
    assert again == first and "fractals/seed_0 starts" in output and "new/seed_0 s" not in output
    lose_rows("new")
    shutil.rmtree(workdir / "new")
    again, output = run()
    assert again == first and "new/seed_0 starts" in output and "fractals/seed_0 s" not in output
    rows = table.read_bytes()
    shutil.rmtree(workdir / "fractals")  # as on another machine
    repeated = ablations(*asked, "--again=3")
    assert repeated.returncode == 0 and table.read_bytes() == rows, repeated.stderr[-3000:]
    for arm in first:
        assert f"| {arm}/seed_0 | same | same | same |" in repeated.stdout


@pytest.mark.slow
def test_early_stopping_takes_the_checkpoint_that_is_best_on_the_held_out_part(tmp_path: Path):
    config = config_of("data_size", "vit_9", "smoke")
    run = replace(config.run, devices=DevicesConfig(kind="one"))
    train_and_measure(replace(config, run=run), tmp_path)
    measured = json.loads((tmp_path / "measured.json").read_text())
    curve = dict(read_metrics(tmp_path)["validation/accuracy"])
    assert curve[measured["steps"]] == max(curve.values()) == measured["held_out_accuracy"]
    assert measured["training_images"] == 144
    assert 0 <= measured["test_accuracy"] <= 1 and len(measured["fewshot_draws"]) == 10
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
    "rate": (
        ["--study=crop", "--size=smoke", "--workdir={}", "--only=resize/rate_fast"],
        "`--only` must be <arm>/seed_<n>, <arm>/rate_<rate> or <start>/seed_<n>, with an arm of "
        "inception, resize_crop, resize, or of a start, fractals",
    ),
    "rate of a start": (
        ["--study=crop", "--size=smoke", "--workdir={}", "--only=fractals/rate_0.1"],
        "Received: 'fractals/rate_0.1'",
    ),
    "no start": (
        ["--study=crop", "--size=smoke", "--workdir={}", "--only=resize/rate_0.03"],
        "fractals/seed_0/model.npz, which resize fine-tunes. Run --only=fractals/seed_0 first",
    ),
    "unknown rate": (
        ["--study=crop", "--size=smoke", "--workdir={}", "--only=resize/seed_0"],
        "The learning rate of resize is not known",
    ),
    "held out": (
        ["--study=crop", "--size=smoke", "--workdir={}", "--config.run.data.held_out=0.2"],
        "`run.data.held_out` is set by the study",
    ),
    "again": (
        ["--study=crop", "--size=smoke", "--workdir={}", "--again=0"],
        "`--again` must be at least 1",
    ),
    "report": (["--report", "--results={}"], "it has no study.json"),
    "report of nothing": (["--report"], "`--results` is missing"),
}


@pytest.mark.parametrize("case", MISTAKES)
def test_mistakes_are_told_in_a_line_and_take_no_folder(case: str, tmp_path: Path):
    options, message = MISTAKES[case]
    refused = ablations(*(option.format(tmp_path / "run") for option in options))
    assert (
        refused.returncode == 1 and message in refused.stderr and "Traceback" not in refused.stderr
    )
    assert not (tmp_path / "run").exists()


TRIAL = f"""
import json, runpy, sys
sys.path.insert(0, "{ROOT}/experiments")
from ablations import runs
from absl import flags
trained = []
runs.train_and_measure = lambda config, folder: trained.append((config, folder))
sys.argv[0] = "{ROOT}/experiments/ablations.py"
script = runpy.run_path(sys.argv[0])
flags.FLAGS([word for word in sys.argv if not word.startswith("--config.")])
schedule = script["make_schedule"](script["read_flags"]())
script["run_one"](schedule, "resize/seed_2")
((config, folder),) = trained
run = [config.run.seed, config.run.optimizer.learning_rate, config.run.batch_size]
command = schedule.make_trial("resize", "seed", 0.01, 2).command
print(json.dumps([command, [*run, config.weights, str(folder)]]))
"""


def test_a_trial_has_the_seed_of_its_name_the_start_of_that_seed_and_the_changes(tmp_path: Path):
    for seed in (0, 2):
        weights = tmp_path / "fractals" / f"seed_{seed}" / "model.npz"
        weights.parent.mkdir(parents=True)
        weights.touch()
    changed = "--config.run.batch_size=24"
    options = ["--study=crop", "--size=smoke", f"--workdir={tmp_path}", "--rate=0.01", changed]
    line = [sys.executable, "-c", TRIAL, *options]
    done = warm.run(line, env=ENV, capture_output=True, text=True, timeout=HUNG_SECONDS)
    assert done.returncode == 0, done.stderr[-3000:]
    command, run = json.loads(done.stdout.splitlines()[-1])
    assert run == [2, 0.01, 24, str(weights), f"{tmp_path}/resize/seed_2"]
    # a study starts its trials with the same flags
    assert {*options, "--only=resize/seed_2"} <= {*command}


def test_a_study_keeps_its_number_of_seeds(tmp_path: Path):
    plan = write_smoke_study(tmp_path)
    asked = ["--study=optimizer", "--size=smoke", f"--workdir={tmp_path}", "--again=1"]
    Results(tmp_path).plan_file.write_text(json.dumps({**plan, "data_sha256": "1"}))
    told = ablations(*asked)  # stops at the data, whose hash is invented; not at the seeds
    assert told.returncode == 1 and "data_sha256: there 1" in told.stderr
    fewer = ablations(*asked, "--seeds=2")
    assert fewer.returncode == 1 and "has runs of 3 seeds" in fewer.stderr


def test_the_list_names_every_study():
    listed = ablations("--list")
    assert listed.returncode == 0 and [line.split()[0] for line in listed.stdout.splitlines()] == [
        *STUDIES
    ]
    # 15 runs: 3 rates of two of the arms, 3 seeds of all three. Each takes 20 s, and 600 steps of
    # 128 images, at 885 images per second
    (hours,) = re.findall(
        r": 3 arms, (\S+) h for the rates and 3 seeds", listed.stdout.splitlines()[0]
    )
    assert float(hours) == pytest.approx(15 * (20 + 600 * 128 / 885) / 3600, abs=0.1)
