"""Configs: what is wrong with one is said before anything runs, and a field is changed by its
name.
"""

import dataclasses
import re
import typing
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("tensorflow")

from keras_vit.train import (  # noqa: E402  # noqa: E402
    DataConfig,
    FinetuneConfig,
    LoopConfig,
    MAEConfig,
    MaskedPatchesConfig,
    OptimizerConfig,
    PretrainConfig,
    RunConfig,
    load_config,
    optimizers,
    pretrain,
    recipe_words,
    run_finetuning,
    schedules,
    smoke_form,
)
from keras_vit.train.config import check_model_options, flatten_config, row_of  # noqa: E402
from keras_vit.train.recipes import with_fields  # noqa: E402

pytestmark = pytest.mark.tensorflow


def with_field(config, name: str, text: str):
    return with_fields(config, {name: text})


CONFIGS = Path(__file__).parents[2] / "experiments" / "configs"


@pytest.fixture
def config() -> PretrainConfig:
    run = RunConfig(data=DataConfig(kind="digits"), loop=LoopConfig(total_steps=10))
    return PretrainConfig(run=run, variant={"depth": 2})


def test_a_field_is_changed_by_its_dotted_name(config):
    changed = with_field(config, "run.optimizer.learning_rate", "0.25")
    assert changed.run.optimizer == OptimizerConfig(learning_rate=0.25)
    assert changed.run.loop is config.run.loop and config.run.optimizer == OptimizerConfig()


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("run.optimizer.learning_rate", "1", 1.0),
        ("run.optimizer.clip_norm", "None", None),
        ("run.optimizer.average_momentum", "0.9", 0.9),
        ("run.optimizer.frozen", "('embedding',)", ("embedding",)),
        ("run.optimizer.frozen", "['embedding']", ("embedding",)),
        ("run.data.flip", "False", False),
        ("run.data.name", "/data/3 pets", "/data/3 pets"),
        ("model", "ViT_S16", "ViT_S16"),
        ("variant.depth", "5", 5),
        ("variant.width", "32", 32),
        ("variant", "{'depth': 7}", {"depth": 7}),
    ],
)
def test_values_are_read_as_python_writes_them(config, name: str, text: str, value):
    found = with_field(config, name, text)
    for part in name.split("."):
        found = found[part] if isinstance(found, dict) else getattr(found, part)
    assert found == value and type(found) is type(value)


def test_an_unknown_field_names_its_neighbours(config):
    with pytest.raises(
        ValueError,
        match=r"no field 'run.optimizer.learning_rte'. Did you mean run.optimizer.learning_rate",
    ):
        with_field(config, "run.optimizer.learning_rte", "1")
    with pytest.raises(ValueError, match=r"no field 'learning_rate'.*run.optimizer.learning_rate"):
        with_field(config, "learning_rate", "1")


def test_changes_are_checked_together(config):
    changes = {
        "run.data.kind": "image_folder",
        "run.data.name": "/data/pets",
        "variant": "{}",
        "variant.depth": "3",
    }
    for order in (changes, dict(reversed(changes.items()))):
        changed = with_fields(config, order)
        assert (changed.run.data.kind, changed.run.data.name, changed.variant) == (
            "image_folder",
            "/data/pets",
            {"depth": 3},
        )
    with pytest.raises(ValueError, match="`data.name` is empty"):
        with_fields(config, {"run.data.kind": "image_folder"})


def test_a_value_of_another_type_is_refused(config):
    with pytest.raises(ValueError, match="`run.batch_size` must be of type int. Received: 'many'"):
        with_field(config, "run.batch_size", "many")
    with pytest.raises(ValueError, match="`run.data.flip` must be of type bool. Received: 1"):
        with_field(config, "run.data.flip", "1")


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        (
            "run.devices.jit_compile",
            "false",
            "of type bool or None. Received: 'false'. Write False.",
        ),
        ("run.devices.jit_compile", "1", "of type bool or None. Received: 1."),
        ("run.batch_size", "None", "of type int. Received: None."),
        ("run.batch_size", "none", "of type int. Received: 'none'."),
        ("run.seed", "true", "of type int. Received: 'true'."),
        (
            "run.optimizer.layer_decay",
            "none",
            "of type float or None. Received: 'none'. Write None.",
        ),
        ("run.batch_size", "True", "of type int. Received: True."),
        ("run.data.flip", "None", "of type bool. Received: None."),
        ("run.optimizer.layer_decay", "abc", "of type float or None. Received: 'abc'."),
        ("run.optimizer.frozen", "head", "of type tuple. Received: 'head'."),
        ("variant", "3", "of type dict. Received: 3."),
    ],
)
def test_a_field_takes_its_declared_type_alone(config, name, text, message):
    with pytest.raises(ValueError, match=f"`{name}` must be {re.escape(message)}$"):
        with_field(config, name, text)


def test_a_field_that_may_be_none_takes_both(config):
    for text, value in (("None", None), ("1", 1.0), ("0.5", 0.5)):
        changed = with_field(config, "run.optimizer.layer_decay", text).run.optimizer.layer_decay
        assert changed == value and type(changed) is type(value)
    assert with_field(config, "run.devices.jit_compile", "False").run.devices.jit_compile is False
    assert with_field(config, "run.optimizer.frozen", "['head']").run.optimizer.frozen == ("head",)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("weight_decay", "-1", "`weight_decay` must not be negative"),
        ("schedule_options.timescal", "3", "no option 'timescal'. Did you mean timescale"),
        (
            "schedule_options.linear_end",
            "0.1",
            'linear_end` is an option of the schedule "linear" al',
        ),
    ],
)
def test_a_changed_value_is_checked_like_any(config, name, text, message):
    with pytest.raises(ValueError, match=message):
        with_field(config, f"run.optimizer.{name}", text)
    linear = with_field(config, "run.optimizer.schedule", "linear")
    assert with_field(linear, "run.optimizer.schedule_options.linear_end", "0.1")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("label_smoothing", "7.0"),
        ("label_smoothing", "-0.1"),
        ("data.mixup_alpha", "-1"),
        ("data.rand_augment_ops", "-1"),
        ("data.crop_area", "0"),
        ("data.crop_area", "1.5"),
    ],
)
def test_what_no_run_could_use_is_refused_before_it_starts(config, name, text):
    with pytest.raises(ValueError, match=f"`{name.rpartition('.')[2]}`.* must"):
        with_field(config, f"run.{name}", text)


def test_every_field_can_be_named(config):
    flat = flatten_config(config)
    assert flat["run.loop.total_steps"] == "10" and flat["variant"] == "{'depth': 2}"
    assert len(flat) > 40
    for name, text in flat.items():
        assert with_field(config, name, text) == config


VALID = {"model": ("ViT_B16", "ViT_L16"), "size": ("smoke",)}


def test_words_of_a_recipe_come_in_any_order():
    assert recipe_words("", VALID) == {"model": "", "size": ""}
    assert recipe_words("smoke,ViT_L16", VALID) == recipe_words(" ViT_L16, smoke", VALID)
    assert recipe_words("smoke,ViT_L16", VALID) == {"model": "ViT_L16", "size": "smoke"}


def test_another_schedule_than_that_of_the_recipe_takes_its_options_too():
    recipe, name = f"{CONFIGS / 'pretrain.py'}:ViT_B16,imagenet21k", "run.optimizer.schedule"
    with pytest.raises(ValueError, match=r"`linear_end` .* `schedule_options=\{\}`"):
        load_config(recipe, [f"{name}=cosine"])
    for options in (
        [f"{name}=cosine", f"{name}_options={{}}"],
        [f"{name}_options={{}}", f"{name}=cosine"],
    ):
        optimizer = load_config(recipe, options).run.optimizer
        assert (optimizer.schedule, optimizer.schedule_options) == ("cosine", {})
    options = [f"{name}=rsqrt", f"{name}_options={{}}", f"{name}_options.timescale=100"]
    assert load_config(recipe, options).run.optimizer.schedule_options == {"timescale": 100}


@pytest.mark.parametrize(
    "arg", ["smok", "ViT_B16,ViT_L16", "smoke,smoke", "smoke,vit_b16", "smoke ViT_B16"]
)
def test_a_word_too_many_lists_the_valid_ones(arg: str):
    with pytest.raises(ValueError) as caught:
        recipe_words(arg, VALID)
    assert f"Received: {arg!r}.\n  model: ViT_B16, ViT_L16\n  size: smoke" in str(caught.value)


@pytest.mark.parametrize("procedure", [pretrain, run_finetuning])
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"droput_rate": 0.1}, "Did you mean dropout_rate"),
        ({"include_preprocessing": True}, "does not accept include_preprocessing"),
        ({"include_top": False, "weights": None}, "does not accept include_top, weights"),
    ],
)
def test_a_model_option_that_no_model_takes_stops_before_the_training(
    tmp_path, procedure, options, message
):
    kind = PretrainConfig if procedure is pretrain else FinetuneConfig
    more = {} if procedure is pretrain else {"weights": "none"}
    run = RunConfig(data=DataConfig(kind="digits", flip=False), loop=LoopConfig(total_steps=1))
    with pytest.raises(ValueError, match=message):
        procedure(kind(**more, model="ViT_Ti16", model_options=options, run=run), tmp_path)
    assert not list(tmp_path.glob("config.json"))


@pytest.mark.parametrize("name", ["validation/acc", "accuracy", "preview/answer", ""])
def test_a_best_metric_that_nothing_measures_does_not_occupy_the_folder(tmp_path, name):
    tiny = {"patch_size": 4, "width": 16, "depth": 1, "num_heads": 2, "mlp_dim": 16}
    run = RunConfig(
        data=DataConfig(kind="digits", flip=False), loop=LoopConfig(total_steps=1, best_metric=name)
    )
    config = PretrainConfig(model="ViT_Ti16", variant=tiny, image_size=8, run=run)
    with pytest.raises(ValueError, match="`best_metric` = .* Valid: validation/loss, validation/"):
        pretrain(config, tmp_path)
    assert not (tmp_path / "config.json").exists()


def test_a_recipe_passes_on_the_options_of_its_model_and_no_others():
    vit, resnet = row_of("ViT_Ti16", {}), row_of("BiT_R50x1", {})
    check_model_options(vit, {"classifier": "gap", "dropout_rate": 0.1, "head_bias": -7.0})
    check_model_options(resnet, {"pool_padding": "zeros"})
    with pytest.raises(ValueError, match="does not accept head_bias"):
        check_model_options(vit, {"head_bias": -7.0}, set_too=["head_bias"])
    with pytest.raises(ValueError, match="does not accept classifier"):
        check_model_options(resnet, {"classifier": "gap"})


def test_the_smoke_form_keeps_what_is_tried():
    optimizer = OptimizerConfig(
        name="momentum",
        schedule="staircase",
        schedule_options={"boundaries": (100, 200, 300, 400)},
        warmup_steps=50,
        average_momentum=0.9999,
        weight_decay=0.3,
    )
    data = DataConfig(
        name="/nowhere", held_out=0.001, rand_augment_ops=2, mixup_alpha=0.2, drop_duplicates=True
    )
    run = RunConfig(
        data=data,
        loop=LoopConfig(total_steps=500),
        optimizer=optimizer,
        loss="sigmoid",
        batch_size=4096,
    )
    config = PretrainConfig(
        model="R50_ViT_B16", model_options={"representation_size": 768}, run=run
    )
    small = smoke_form(config)
    assert small.run.data == DataConfig(
        kind="digits", flip=False, rand_augment_ops=2, mixup_alpha=0.2
    )
    assert (small.run.loss, small.run.optimizer.weight_decay) == ("sigmoid", 0.3)
    assert small.run.optimizer.schedule_options == {"boundaries": (3, 4, 5, 6)}
    assert (small.run.optimizer.average_momentum, small.model_options) == (
        0.9,
        {"representation_size": 32},
    )
    assert small.run.loop.total_steps == 10 and small.variant["stem"].units == (1, 1)
    # Fine-tuning has another resolution, so that positions are resized.
    tuned = smoke_form(FinetuneConfig(model="R50_ViT_B16", weights="imagenet21k", run=run))
    assert (small.image_size, tuned.image_size, tuned.weights) == (32, 48, "/tmp/smoke/model.npz")
    fractals = replace(run, data=DataConfig(kind="fractals"))
    assert smoke_form(replace(config, run=fractals)).run.data.kind == "fractals"


@pytest.mark.parametrize("recipe", sorted(path.name for path in CONFIGS.glob("*.py")))
@pytest.mark.parametrize("argument", ["", "smoke"])
def test_every_recipe_is_complete(recipe: str, argument: str):
    config = load_config(f"{CONFIGS / recipe}:{argument}")
    assert isinstance(config, PretrainConfig | FinetuneConfig | MaskedPatchesConfig | MAEConfig)
    assert dataclasses.fields(config)
    if argument == "smoke":
        assert config.run.loop.total_steps <= 20 and config.run.data.kind in ("digits", "fractals")


def test_overrides_come_after_the_recipe():
    config = load_config(
        f"{CONFIGS}/cifar10_scratch.py:smoke", ["run.batch_size=8", "image_size=24"]
    )
    assert (config.run.batch_size, config.image_size) == (8, 24)
    config = load_config(f"{CONFIGS}/cifar10_scratch.py", ["run.data.name=photos=new"])
    assert config.run.data.name == "photos=new"  # a value may contain the sign
    with pytest.raises(ValueError, match="written name=value. Received: 'run.batch_size'"):
        load_config(f"{CONFIGS}/cifar10_scratch.py", ["run.batch_size"])


@pytest.mark.parametrize("recipe", sorted(path.name for path in CONFIGS.glob("*.py")))
def test_an_unknown_argument_does_not_start_another_run(recipe: str):
    with pytest.raises(ValueError, match="or nothing after the colon. Received: 'smok'"):
        load_config(f"{CONFIGS / recipe}:smok")


def test_a_recipe_that_is_none_is_said(tmp_path):
    with pytest.raises(ValueError, match="There is no recipe .*absent.py"):
        load_config(str(tmp_path / "absent.py"))
    (tmp_path / "empty.py").write_text("x = 1\n")
    with pytest.raises(ValueError, match="it has no function `get_config"):
        load_config(str(tmp_path / "empty.py"))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: DataConfig(kind="folder", name="x"),
            "`kind` must be one of image_folder, tfds, digits, fractals",
        ),
        (lambda: DataConfig(), "`data.name` is empty: name the folder"),
        (lambda: DataConfig(kind="tfds"), "`data.name` is empty: name the data set"),
        (
            lambda: DataConfig(kind="digits", crop="resize_crop", crop_area=0.3),
            '`crop_area` applies to crop="inception" alone. Received: crop_area=0.3',
        ),
        (
            lambda: DataConfig(kind="digits", crop="resize", crop_area=0.3),
            '`crop_area` applies to crop="inception" alone. Received: crop_area=0.3',
        ),
        (
            lambda: RunConfig(
                data=DataConfig(kind="digits"), loop=LoopConfig(total_steps=1), batch_size=0
            ),
            "`batch_size` = 0",
        ),
        (
            lambda: FinetuneConfig(
                weights="",
                run=RunConfig(data=DataConfig(kind="digits"), loop=LoopConfig(total_steps=1)),
            ),
            "`weights` is empty",
        ),
    ],
)
def test_what_is_wrong_is_said_at_once(make, message: str):
    with pytest.raises(ValueError, match=message):
        make()


def test_the_docstring_of_the_optimizer_lists_names_and_schedules():
    """The reference of the site is made from it."""
    text = " ".join(optimizers.OptimizerConfig.__doc__.split())
    names, kinds = (
        re.search(rf" {field}: (.*?)\.", text)[1].replace(" or ", ", ").split(", ")
        for field in ("name", "schedule")
    )
    assert [name.strip('"') for name in names] == list(optimizers.OPTIMIZERS)
    assert {kind.strip('"') for kind in kinds} == set(typing.get_args(schedules.Decay))
