"""The recipes in experiments/configs: the paper's numbers, every word, and ten steps of each.

The numbers of tables 3 and 4 and of AugReg's grid come from `golden/paper_tables.md`, which was
typed from the papers.
"""

import functools
import itertools
import re
import runpy
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("tensorflow")
pytest.importorskip("sklearn")

import keras_vit  # noqa: E402
from keras_vit.train import (  # noqa: E402
    DevicesConfig,
    FinetuneConfig,
    MAEConfig,
    MaskedPatchesConfig,
    PretrainConfig,
    pretrain,
    pretrain_mae,
    pretrain_masked_patches,
    run_finetuning,
)
from keras_vit.train.optimizers import make_optimizer  # noqa: E402
from keras_vit.variants import VARIANTS, VIT_VARIANTS, ViTVariant  # noqa: E402

pytestmark = pytest.mark.tensorflow

ROOT = Path(__file__).parents[1]
CONFIGS = ROOT / "experiments" / "configs"
RECIPES = tuple(sorted(path.name for path in CONFIGS.glob("*.py")))

# The paper's names of data sets to the words of the recipes; training images from elsewhere than
# the recipes.
DATA = {"JFT-300M": "jft", "ImageNet-21k": "imagenet21k", "ImageNet": "imagenet"}
NUM_IMAGES = {"jft": 303e6, "imagenet21k": 14.2e6, "imagenet": 1281167}
TASKS = {
    "ImageNet": "imagenet",
    "CIFAR-100": "cifar100",
    "CIFAR-10": "cifar10",
    "Oxford-IIIT Pets": "pets",
    "Oxford Flowers-102": "flowers",
    "VTAB (19 tasks)": "vtab",
}
# Runs that tables 5 and 6 have, and table 3 does not.
BEYOND_TABLE_3 = {
    ("ViT_H14", "imagenet21k", 30),
    ("ViT_H14", "imagenet21k", 90),
    ("ResNet152x2", "jft", 14),
    ("ResNet200x3", "jft", 14),
}


def table(heading: str) -> list[list[str]]:
    """The rows of a table of the file, without its header."""
    text = (ROOT / "tests" / "golden" / "paper_tables.md").read_text(encoding="utf-8")
    section = text.split(f"## {heading}")[1].split("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    return [
        [cell.strip() for cell in line.strip("|").split("|")] for line in [lines[0], *lines[2:]]
    ]


def models(name: str) -> list[str]:
    """Our names of what the paper calls "R50+ViT-B/{16,32}"."""
    before, choices, after = (
        re.match(r"(.*?)\{(.*)\}(.*)", name) or re.match(r"(.*)()()", name)
    ).groups()
    names = [before + choice + after for choice in choices.split(",")] if choices else [name]
    if name == "ViT-*":
        names = ["ViT-B/16", "ViT-B/32", "ViT-L/16", "ViT-L/32", "ViT-H/14"]
    ours = [re.sub("[-+]", "_", name.replace("/", "")) for name in names]
    return [name if "ViT" in name else name.replace("R", "ResNet") for name in ours]


def runs_of_table_3() -> Iterator[tuple]:
    for name, dataset, epochs, *numbers in table("Table 3")[1:]:
        for model, length in itertools.product(models(name), epochs.split("/")):
            yield model, DATA[dataset], int(length), *numbers


@functools.cache
def defined_in(recipe: str) -> dict:
    return runpy.run_path(str(CONFIGS / recipe))


def config_of(recipe: str, *words: str):
    return defined_in(recipe)["get_config"](",".join(words))


def rate_at(config, step: int) -> float:
    """The learning rate of the optimizer that the library makes of a config."""
    row = replace(VIT_VARIANTS["ViT_Ti16"], depth=1)  # rates do not depend on the depth
    model = keras_vit.application(row)(weights=None, classes=2, input_shape=(32, 32, 3))
    optimizer = make_optimizer(config.run.optimizer, model, config.run.loop.total_steps)
    (rate,) = set(optimizer.learning_rates(step).values())
    return rate


@pytest.mark.parametrize(
    ("model", "data", "epochs", "rate", "schedule", "decay", "dropout"), [*runs_of_table_3()]
)
def test_table_3(model, data, epochs, rate, schedule, decay, dropout):
    config = config_of("pretrain.py", f"{epochs}ep", model, data)
    run, optimizer = config.run, config.run.optimizer
    assert isinstance(config, PretrainConfig) and config.model == model and config.image_size == 224
    assert run.batch_size == 4096
    assert run.loop.total_steps == pytest.approx(epochs * NUM_IMAGES[data] / 4096, rel=1e-3)
    if data != "imagenet":  # ImageNet has a validation set, so no training image is held out
        assert run.data.held_out * NUM_IMAGES[data] == pytest.approx(51_200, rel=1e-3)
    assert (optimizer.name, optimizer.options) == ("adam", {"beta_1": 0.9, "beta_2": 0.999})
    assert (optimizer.learning_rate, optimizer.schedule) == (float(rate), schedule)
    assert (optimizer.weight_decay, optimizer.warmup_steps) == (float(decay), 10_000)
    assert optimizer.clip_norm == (1.0 if data == "imagenet" else None)
    assert optimizer.schedule_options == ({"linear_end": 1e-5} if schedule == "linear" else {})
    assert config.model_options.get("dropout_rate", 0.0) == float(dropout)
    # as in the authors' later code: `sigmoid_xent`; weight decay applies to kernels only
    assert (run.loss, optimizer.decay) == ("sigmoid", "kernels")
    has_tanh_layer = "ViT" in model
    assert config.model_options.get("representation_size") == (
        VIT_VARIANTS[model].width if has_tanh_layer else None
    )


def test_every_row_of_table_3_has_its_recipe_and_no_other_has():
    words = defined_in("pretrain.py")["WORDS"]
    accepted = set()
    for model, data, epochs in itertools.product(words["model"], words["data"], words["epochs"]):
        try:
            config_of("pretrain.py", model, data, epochs)
        except ValueError as error:
            assert f"The paper has no such run of {model}. Its runs of this model: " in str(error)
        else:
            accepted.add((model, data, int(epochs.removesuffix("ep"))))
    in_table_3 = {run[:3] for run in runs_of_table_3()}
    assert len(table("Table 3")) == 14 and len(in_table_3) == 27
    assert accepted - in_table_3 == BEYOND_TABLE_3 and in_table_3 < accepted


def test_learning_rates_of_table_3_as_the_optimizer_has_them():
    linear, cosine = (
        config_of("pretrain.py", "jft", "ViT_B16"),
        config_of("pretrain.py", "imagenet", "ViT_B16"),
    )
    assert [rate_at(config, 5000) for config in (linear, cosine)] == pytest.approx([4e-4, 1.5e-3])
    assert [rate_at(config, 10_000) for config in (linear, cosine)] == pytest.approx([8e-4, 3e-3])
    ends = [rate_at(config, config.run.loop.total_steps) for config in (linear, cosine)]
    assert ends == pytest.approx([1e-5, 0.0], abs=1e-9)


@pytest.mark.parametrize(("dataset", "steps", "rates"), table("Table 4")[1:])
@pytest.mark.parametrize("model", ["ViT_L16", "R50_ViT_B16", "ResNet50x1"])
def test_table_4(dataset, steps, rates, model):
    data, steps = TASKS[dataset], int(steps.replace(" ", ""))
    config = config_of("finetune.py", model, data)
    run, optimizer = config.run, config.run.optimizer
    assert isinstance(config, FinetuneConfig) and config.model == model and config.image_size == 384
    assert (run.batch_size, run.loop.total_steps) == (512, steps)
    assert (optimizer.name, optimizer.options) == ("momentum", {"momentum": 0.9})
    assert (optimizer.schedule, optimizer.weight_decay, optimizer.clip_norm) == ("cosine", 0.0, 1.0)
    assert optimizer.warmup_steps == {500: 100, 2500: 200}.get(steps, 500)
    assert optimizer.average_momentum is None
    get_sweep = defined_in("finetune.py")["get_sweep"]
    sweep = get_sweep(f"{data},{model}")
    grid = {float(rate) for rate in rates.strip("{}").split(",")}
    assert set(sweep["learning_rates"]) == (grid - {0.06} if model == "ViT_L16" else grid)
    assert optimizer.learning_rate in grid
    # "vtab": 200 of the 1000 images of each task.
    shares = {
        "pets": 0.1,
        "flowers": 0.1,
        "cifar10": 0.02,
        "cifar100": 0.02,
        "imagenet": 0.01,
        "vtab": 0.2,
    }
    assert sweep["held_out"] == shares[data]


def test_every_row_of_table_4_was_tested():
    assert [row[0] for row in table("Table 4")[1:]] == list(TASKS)
    words = defined_in("finetune.py")["WORDS"]
    assert set(words["data"]) == {*TASKS.values(), "cifar10_48px"}


@pytest.mark.parametrize(
    "model", ["ViT_B16", "ViT_L16", "ViT_L32", "ViT_H14", "R50_ViT_B16", "BiT_R50x1"]
)
def test_fine_tuning_starts_from_published_weights_at_a_size_that_patches_tile(model):
    config = config_of("finetune.py", model)
    assert config.weights in keras_vit.list_weights(model)
    assert (
        config.image_size % (VIT_VARIANTS[model].total_stride if model in VIT_VARIANTS else 32) == 0
    )


@pytest.mark.parametrize(("model", "image_size"), [("ViT_L16", 512), ("ViT_H14", 518)])
def test_the_imagenet_column_of_table_2(model, image_size):
    config = config_of("imagenet_512px.py", model)
    assert (config.image_size, config.run.optimizer.average_momentum) == (image_size, 0.9999)
    optimizer = replace(config.run.optimizer, average_momentum=None)
    of_table_4 = config_of("finetune.py", "imagenet", model)
    assert (
        replace(
            config, image_size=of_table_4.image_size, run=replace(config.run, optimizer=optimizer)
        )
        == of_table_4
    )


@pytest.mark.parametrize(
    ("data", "epochs", "stairs", "loss"),
    [
        ("imagenet", 90, (30, 60, 80), "softmax"),
        ("imagenet21k", 90, (30, 60, 80), "sigmoid"),
        ("jft", 40, (10, 23, 30, 37), "sigmoid"),
    ],
)
def test_the_pre_training_of_bit(data, epochs, stairs, loss):
    config = config_of("bit_pretrain.py", data, "BiT_R101x3")
    run, optimizer = config.run, config.run.optimizer
    assert (config.model, config.image_size, run.batch_size) == ("BiT_R101x3", 224, 4096)
    assert run.loss == loss  # as in bit_i1k.py and bit_i21k.py of the authors' later code
    assert (optimizer.name, optimizer.options, optimizer.warmup_steps) == (
        "momentum",
        {"momentum": 0.9},
        5000,
    )
    assert optimizer.learning_rate == pytest.approx(0.48)  # 0.03 for each 256 examples
    steps_per_epoch = NUM_IMAGES[data] / 4096
    boundaries = [
        boundary / steps_per_epoch for boundary in optimizer.schedule_options["boundaries"]
    ]
    assert boundaries == pytest.approx(stairs, rel=2e-3)
    assert run.loop.total_steps / steps_per_epoch == pytest.approx(epochs, rel=1e-3)
    assert rate_at(config, run.loop.total_steps - 1) == pytest.approx(0.48 * 0.1 ** len(stairs))
    # A term of the loss, 1e-4 / 2 * |w|^2, shrinks weights by rate * 1e-4 / (1 - momentum) in the
    # long run.
    assert optimizer.weight_decay == pytest.approx(1e-3)


@pytest.mark.parametrize(
    ("words", "image_size", "steps", "warmup", "boundaries", "mixup"),
    [
        (("cifar10",), 128, 10_000, 500, (3000, 6000, 9000), 0.1),
        (("cifar100", "ResNet50x1"), 128, 10_000, 500, (3000, 6000, 9000), 0.1),
        (("pets",), 384, 500, 100, (200, 300, 400), 0.0),
        (("flowers",), 384, 500, 100, (200, 300, 400), 0.0),
        (("vtab",), 384, 500, 100, (200, 300, 400), 0.0),
        (("imagenet",), 384, 20_000, 500, (6000, 12_000, 18_000), 0.1),
        (("imagenet", "BiT_R152x4"), 480, 20_000, 500, (6000, 12_000, 18_000), 0.1),
    ],
)
def test_bit_hyperrule(words, image_size, steps, warmup, boundaries, mixup):
    config = config_of("bit_hyperrule.py", *words)
    run, optimizer = config.run, config.run.optimizer
    assert (config.image_size, run.loop.total_steps, run.batch_size) == (image_size, steps, 512)
    assert (optimizer.name, optimizer.learning_rate, optimizer.weight_decay) == (
        "momentum",
        0.003,
        0.0,
    )
    assert (optimizer.warmup_steps, optimizer.schedule_options) == (
        warmup,
        {"boundaries": boundaries},
    )
    assert (run.data.mixup_alpha, run.data.crop, run.data.eval_crop) == (
        mixup,
        "resize_crop",
        "resize",
    )


@pytest.mark.parametrize("data", ["imagenet", "imagenet21k"])
def test_the_28_settings_of_augreg(data):
    names, settings = table("AugReg: augmentations")
    found = set()
    for name, reg, decay in itertools.product(names, ("noreg", "reg"), ("wd0.1", "wd0.03")):
        config = config_of("augreg.py", data, name, reg, decay)
        options, images = config.model_options, config.run.data
        augmentation = (images.rand_augment_ops, images.rand_augment_magnitude, images.mixup_alpha)
        regularization = (options["dropout_rate"], options["stochastic_depth_rate"])
        assert augmentation == tuple(map(float, settings[names.index(name)].strip("()").split(",")))
        assert regularization == {"noreg": (0.0, 0.0), "reg": (0.1, 0.1)}[reg]
        assert config.run.optimizer.weight_decay == float(decay.removeprefix("wd"))
        found.add((name, *regularization, config.run.optimizer.weight_decay))
        assert config.run.optimizer.learning_rate == 1e-3 and config.run.optimizer.clip_norm == 1.0
        assert (config.run.optimizer.schedule, config.run.optimizer.warmup_steps) == (
            "cosine",
            10_000,
        )
        assert config.run.loop.total_steps == pytest.approx(
            300 * NUM_IMAGES[data] / 4096, rel=0.011
        )
        # as in vit_i1k.py and vit_i21k.py of the authors' later code
        on_imagenet = data == "imagenet"
        assert images.train == ("train[:99%]" if on_imagenet else "train")
        assert options["representation_size"] == (768 if on_imagenet else None)
    assert len(found) == 28


@pytest.mark.parametrize(
    ("model", "on_imagenet", "on_imagenet21k"),
    [
        ("ViT_Ti16", (2, 0, 0.0), (0, 0, 0.0)),
        ("ViT_S32", (2, 15, 0.2), (0, 0, 0.0)),
        ("ViT_S16", (2, 15, 0.5), (2, 0, 0.0)),
        ("ViT_B32", (2, 15, 0.5), (2, 10, 0.2)),
        ("ViT_B16", (2, 15, 0.5), (2, 10, 0.2)),
        ("ViT_L16", (2, 15, 0.5), (2, 15, 0.5)),
    ],
)
def test_what_augreg_recommends(model, on_imagenet, on_imagenet21k):
    for data, expected in (("imagenet", on_imagenet), ("imagenet21k", on_imagenet21k)):
        config = config_of("augreg.py", data, model)
        images = config.run.data
        assert (
            images.rand_augment_ops,
            images.rand_augment_magnitude,
            images.mixup_alpha,
        ) == expected
        assert (config.run.optimizer.weight_decay, config.model_options["dropout_rate"]) == (
            0.1,
            0.0,
        )


@pytest.mark.parametrize(("words", "epochs"), [((), 90), (("150ep",), 150), (("300ep",), 300)])
def test_the_plain_vit(words, epochs):
    config = config_of("plain_vit_s16.py", *words)
    run, optimizer = config.run, config.run.optimizer
    assert (config.model, config.image_size, run.batch_size, run.loss) == (
        "ViT_S16",
        224,
        1024,
        "softmax",
    )
    options = {"classifier": "gap", "position_embedding": "sincos2d", "representation_size": 384}
    assert config.model_options == options
    assert run.loop.total_steps == pytest.approx(epochs * 0.99 * 1_281_167 / 1024, abs=1)
    # 1e-4 in the authors' code, which multiplies it by the schedule but not by the peak of 1e-3.
    assert optimizer.weight_decay * optimizer.learning_rate == pytest.approx(1e-4)
    assert (optimizer.name, optimizer.schedule, optimizer.warmup_steps) == (
        "adam",
        "cosine",
        10_000,
    )
    assert (optimizer.learning_rate, optimizer.clip_norm) == (1e-3, 1.0)
    data = run.data
    assert (data.rand_augment_ops, data.rand_augment_magnitude, data.mixup_alpha) == (2, 10.0, 0.2)
    assert (data.crop, data.crop_area, data.flip, data.eval_crop) == (
        "inception",
        0.05,
        True,
        "resize_shorter",
    )


@pytest.mark.parametrize(
    ("words", "model", "epochs", "normalized"),
    [
        ((), "MAE_B16", 800, True),
        (("MAE_L16", "1600ep"), "MAE_L16", 1600, True),
        (("MAE_H14", "pixels"), "MAE_H14", 800, False),
    ],
)
def test_the_pre_training_of_mae(words, model, epochs, normalized):
    """Table 8 of arXiv:2111.06377, and the decoder of its section 4."""
    config = config_of("mae.py", *words)
    run, optimizer = config.run, config.run.optimizer
    assert (config.model, config.image_size, run.batch_size) == (model, 224, 4096)
    assert (config.mask_share, config.normalize_pixels) == (0.75, normalized)
    assert (config.decoder_width, config.decoder_depth, config.decoder_heads) == (512, 8, 16)
    assert optimizer.options == {"beta_1": 0.9, "beta_2": 0.95}
    assert optimizer.learning_rate == pytest.approx(1.5e-4 * 16)
    assert (optimizer.name, optimizer.schedule, optimizer.weight_decay, optimizer.clip_norm) == (
        "adamw",
        "cosine",
        0.05,
        None,
    )
    steps_per_epoch = NUM_IMAGES["imagenet"] / 4096
    assert optimizer.warmup_steps == pytest.approx(40 * steps_per_epoch, abs=1)
    assert run.loop.total_steps == pytest.approx(epochs * steps_per_epoch, abs=1)
    data = run.data
    assert (data.crop, data.crop_area, data.flip, data.rand_augment_ops) == (
        "inception",
        0.2,
        True,
        0,
    )


def test_fractals_are_fair_to_both():
    scratch, tuned = (
        config_of("fractals_digits.py", "scratch"),
        config_of("fractals_digits.py", "finetune"),
    )
    pretrained = config_of("fractals_digits.py")
    assert scratch.run.data == tuned.run.data and scratch.run.loop == tuned.run.loop
    assert not tuned.run.data.flip  # the mirror image of a digit is no digit
    assert (scratch.run.batch_size, scratch.run.seed) == (tuned.run.batch_size, tuned.run.seed)
    assert (
        scratch.variant == tuned.variant == pretrained.variant
        and pretrained.run.data.kind == "fractals"
    )
    assert "--workdir=runs/fractals\n" in (CONFIGS / "fractals_digits.py").read_text(
        encoding="utf-8"
    )
    assert tuned.weights == "runs/fractals/model.npz"


PROCEDURES = {
    PretrainConfig: pretrain,
    FinetuneConfig: run_finetuning,
    MaskedPatchesConfig: pretrain_masked_patches,
    MAEConfig: pretrain_mae,
}


@pytest.mark.parametrize(
    ("recipe", "words"),
    [
        ("finetune.py", "cifar10_48px"),
        ("fractals_cifar10.py", "long"),
        ("masked_patches.py", "cifar10"),
        ("mae.py", "cifar10"),
        ("cifar10_few_labels.py", "finetune"),
        ("cifar10_few_labels.py", "scratch"),
    ],
)
def test_what_goes_on_from_the_small_model_has_its_shape(recipe, words):
    small, config = config_of("cifar10_scratch.py"), config_of(recipe, words)
    for name in ("model", "variant", "model_options"):
        assert getattr(config, name) == getattr(small, name)


@pytest.mark.parametrize("recipe", RECIPES)
def test_every_word_of_a_recipe_is_of_use(recipe):
    words = defined_in(recipe)["WORDS"]
    kinds = list(words)
    assert words["size"] == ("smoke",) and len(set(sum(words.values(), ()))) == sum(
        map(len, words.values())
    )
    for kind in kinds:
        for word in words[kind]:
            # Some lengths belong to one model alone.
            others = ["", *(other for name in kinds if name != kind for other in words[name])]
            assert any(_builds(recipe, word, other) for other in others), word


def _builds(recipe: str, *words: str) -> bool:
    try:
        config = config_of(recipe, *words)
    except ValueError:
        return False
    assert type(config) in PROCEDURES
    assert (config.run.data.kind == "digits") >= ("smoke" in words and "fractals" not in recipe)
    assert config.run.loop.total_steps > config.run.optimizer.warmup_steps
    return True


@pytest.mark.parametrize("recipe", RECIPES)
def test_an_unknown_word_lists_the_valid_ones(recipe):
    words = defined_in(recipe)["WORDS"]
    with pytest.raises(ValueError) as caught:
        config_of(recipe, "smoke", "ViT_B17")
    missing = [
        word for choices in words.values() for word in choices if word not in str(caught.value)
    ]
    assert missing == [] and "'smoke,ViT_B17'" in str(caught.value)


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_recipe_says_how_to_run_it_and_what_to_expect(recipe):
    text = defined_in(recipe)["__doc__"]
    assert f"--config=experiments/configs/{recipe}" in text and "arXiv:" in text
    assert "Hardware" in text and re.search(r"\b[Ss]core\b", text)
    said = ("Ours: no such run has been made", "not measured yet", "experiments/README.md")
    assert any(words in " ".join(text.split()) for words in said)
    for words in re.findall(rf"{re.escape(recipe)}:([\w.,]+)", text):
        config_of(recipe, words)
    assert f"`{recipe}" in (ROOT / "experiments" / "README.md").read_text(encoding="utf-8")


# Recipe and words, and those of the run whose weights it takes. Together: each recipe, each family
# of models.
CHAINS = {
    "ViT": [("pretrain.py", "smoke,imagenet,ViT_L16"), ("imagenet_512px.py", "smoke")],
    "hybrid": [
        ("pretrain.py", "smoke,jft,R50_ViT_B16"),
        ("finetune.py", "smoke,cifar10,R50_ViT_B16"),
    ],
    "ResNet": [("bit_pretrain.py", "smoke,jft"), ("bit_hyperrule.py", "smoke")],
    "small": [("cifar10_scratch.py", "smoke"), ("finetune.py", "smoke,pets")],
    "AugReg": [("augreg.py", "smoke,strong2,reg"), ("finetune.py", "smoke,ViT_B16,vtab")],
    "plain": [("plain_vit_s16.py", "smoke")],
    "fractals": [("fractals_digits.py", "smoke"), ("fractals_digits.py", "smoke,finetune")],
    "scratch": [("fractals_digits.py", "smoke,scratch"), ("fractals_cifar10.py", "smoke")],
    "masked": [("masked_patches.py", "smoke,cifar10"), ("cifar10_few_labels.py", "smoke")],
    "autoencoder": [("mae.py", "smoke"), ("finetune.py", "smoke,MAE_B16")],
}


def test_every_recipe_is_run():
    assert {recipe for chain in CHAINS.values() for recipe, _ in chain} >= set(RECIPES)


@pytest.mark.slow
@pytest.mark.parametrize("chain", CHAINS)
def test_ten_steps(chain, tmp_path):
    weights = ""
    for recipe, words in CHAINS[chain]:
        config = config_of(recipe, words)
        config = replace(config, run=replace(config.run, devices=DevicesConfig(kind="one")))
        workdir = tmp_path / recipe / words
        procedure = PROCEDURES[type(config)]
        results = procedure(
            replace(config, weights=weights) if procedure is run_finetuning else config, workdir
        )
        weights = str(workdir / "model.npz")
        assert Path(weights).is_file() and 0 <= results["validation/accuracy"] <= 1


@pytest.mark.parametrize(
    ("recipe", "words", "data"),
    [
        ("finetune.py", "imagenet", {"name": "imagenet2012", "test": "validation"}),
        ("finetune.py", "cifar10", {"name": "cifar10"}),
        ("finetune.py", "cifar100", {"name": "cifar100"}),
        ("finetune.py", "pets", {"name": "oxford_iiit_pet"}),
        ("finetune.py", "flowers", {"name": "oxford_flowers102"}),
        ("finetune.py", "vtab", {"kind": "image_folder", "name": "data"}),
        ("finetune.py", "", {"kind": "image_folder", "name": "data"}),
        ("cifar10_few_labels.py", "scratch", {"kind": "image_folder", "train_share": 0.1}),
        (
            "cifar10_few_labels.py",
            "scratch,2percent",
            {"kind": "image_folder", "train_share": 0.02},
        ),
        ("cifar10_few_labels.py", "2percent", {"kind": "image_folder", "train_share": 0.02}),
    ],
)
def test_a_recipe_has_the_data_of_its_word(recipe: str, words: str, data: dict):
    found = config_of(recipe, words).run.data
    expected = {"kind": "tfds", "train": "train", "test": "test", "train_share": 1.0, **data}
    assert {name: getattr(found, name) for name in expected} == expected


@pytest.mark.parametrize(
    ("words", "target", "corruption", "steps"),
    [
        ("", "mean_color", 0.5, 100_000),
        ("small_patch,15percent", "small_patch", 0.15, 100_000),
        ("pixels,1M", "pixels", 0.5, 1_000_000),
    ],
)
def test_masked_patches_are_predicted_as_the_words_say(words, target, corruption, steps):
    found = config_of("masked_patches.py", words)
    # arXiv:2010.11929, B.1.2
    optimizer = found.run.optimizer
    assert (optimizer.name, optimizer.learning_rate) == ("adam", 2e-4)
    assert (optimizer.schedule, optimizer.warmup_steps) == ("cosine", 10_000)
    assert found.run.batch_size == 4096
    assert (found.target, found.corruption) == (target, corruption)
    assert found.run.loop.total_steps == steps


@pytest.mark.parametrize(
    ("recipe", "words"),
    [
        ("mae.py", ("MAE_L16", "cifar10")),
        ("mae.py", ("cifar10", "1600ep")),
        ("masked_patches.py", ("1M", "cifar10")),
    ],
)
def test_words_that_would_be_ignored_are_refused(recipe, words):
    with pytest.raises(ValueError, match="must not be combined"):
        config_of(recipe, *words)


@pytest.mark.parametrize("model", [*VARIANTS])
def test_every_model_is_fine_tuned_on_images_that_its_patches_tile(model):
    size = config_of("finetune.py", "pets", model).image_size
    row = VARIANTS[model]
    assert 384 - 16 < size <= 384
    assert not isinstance(row, ViTVariant) or size % row.total_stride == 0


def test_plain_vits_of_all_families_leave_out_the_highest_rate():
    get_sweep = defined_in("finetune.py")["get_sweep"]
    for model, is_plain in (("MAE_B16", True), ("DINOv2_B14", True), ("R50_ViT_B16", False)):
        rates = get_sweep(f"imagenet,{model}")["learning_rates"]
        assert (0.06 not in rates) == is_plain
