"""New heads on trained trunks: what is kept, what starts at zero, and what is resized."""

import math
import sys
from dataclasses import replace
from pathlib import Path

import keras
import numpy as np
import pytest

pytest.importorskip("tensorflow")
scipy_ndimage = pytest.importorskip("scipy.ndimage")

import keras_vit  # noqa: E402
from keras_vit.devices import DevicesConfig  # noqa: E402
from keras_vit.options import POOLING_OF  # noqa: E402
from keras_vit.pixels import pixels_of  # noqa: E402
from keras_vit.train import DataConfig, FinetuneConfig, LoopConfig, RunConfig, load_config  # noqa: E402
from keras_vit.train.finetune_recipe import settle  # noqa: E402
from keras_vit.train.front import describe_kept  # noqa: E402
from keras_vit.train.losses import softmax_cross_entropy  # noqa: E402
from keras_vit.train.new_head import build_on_trunk, copy_with_new_head, start_sha256  # noqa: E402
from keras_vit.variants import RESNET_VARIANTS, VIT_VARIANTS  # noqa: E402
from keras_vit.weights.restore import state  # noqa: E402

pytestmark = pytest.mark.tensorflow

ROW = replace(
    VIT_VARIANTS["ViT_Ti16"], name="tiny", patch_size=8, width=16, depth=2, num_heads=2, mlp_dim=32
)


def trained(image_size: int = 32, row=ROW, **options) -> keras.Model:
    """A model whose every variable has been moved, the head's zeros too."""
    options = {"classes": 7, "input_shape": (image_size, image_size, 3), **options}
    model = keras_vit.application(row)(weights=None, **options)
    draw = np.random.default_rng(1)
    for variable in model.weights:
        variable.assign(draw.normal(0, 0.2, variable.shape))
    return model


def images(size: int, count: int = 3) -> np.ndarray:
    return np.random.default_rng(0).uniform(-1, 1, (count, size, size, 3)).astype("float32")


def published_resize(table: np.ndarray, old: int, new: int) -> np.ndarray:
    """The routine of the published code: the class token aside, `scipy.ndimage.zoom` of order 1
    over the grid.
    """
    token, patches = table[:, :1], table[0, 1:].reshape(old, old, -1)
    zoomed = scipy_ndimage.zoom(patches, (new / old, new / old, 1), order=1)
    return np.concatenate([token, zoomed.reshape(1, new * new, -1)], axis=1)


@pytest.fixture(scope="module")
def large() -> keras.Model:
    return trained(image_size=112, representation_size=12)  # 14 x 14 patches


@pytest.mark.parametrize("way", ["file", "memory"])
def test_positions_are_resized_as_published(way: str, large: keras.Model, tmp_path: Path):
    if way == "file":
        keras_vit.save_checkpoint(large, tmp_path / "tiny.npz")
        model = build_on_trunk(ROW, tmp_path / "tiny.npz", 192, 5)
    else:
        model = copy_with_new_head(large, 192, 5)
    old, new = state(large.layers), state(model.layers)
    table = new["posembed_input/pos_embedding"]
    assert table.shape == (1, 1 + 24 * 24, 16) and table.dtype == np.float32
    np.testing.assert_allclose(
        table, published_resize(old["posembed_input/pos_embedding"], 14, 24), atol=1e-6
    )
    # Everything else is as it was, but for the head, the tanh layer too.
    kept = {name for name in old if not name.startswith(("posembed", "predictions", "pre_logits"))}
    assert kept == {name for name in new if not name.startswith(("posembed", "predictions"))}
    assert all((old[name] == new[name]).all() for name in kept)


@pytest.mark.parametrize("way", ["file", "memory"])
def test_training_starts_with_logits_of_zero_and_the_loss_of_guessing(
    way: str, large: keras.Model, tmp_path: Path
):
    if way == "file":
        keras_vit.save_checkpoint(large, tmp_path / "tiny.npz")
        model = build_on_trunk(ROW, tmp_path / "tiny.npz", 48, 5)
    else:
        model = copy_with_new_head(large, 48, 5)
    logits = keras.ops.convert_to_numpy(model(images(48)))
    assert logits.shape == (3, 5) and not logits.any()
    losses = keras.ops.convert_to_numpy(softmax_cross_entropy(np.array([0, 3, 4]), logits))
    np.testing.assert_allclose(losses, math.log(5), rtol=1e-6)


@pytest.mark.parametrize("top", [True, False])
@pytest.mark.parametrize(
    ("fields", "classifier"),
    [
        ({}, "token"),
        ({}, "gap"),
        ({}, "map"),
        ({"norm_after_pooling": True, "class_token": True}, "gap"),  # timm's mean
        ({"classifier": "gap"}, "gap"),
        ({"classifier": "map"}, "map"),
    ],
)
def test_a_new_head_reads_what_the_weights_were_trained_with(fields, classifier, top, tmp_path):
    row = replace(ROW, **fields)
    without = {"include_top": False, "pooling": POOLING_OF[classifier]}
    model = trained(row=row, classifier=classifier, **({} if top else without))
    keras_vit.save_checkpoint(model, tmp_path / "tiny.npz")
    asked = replace(row, norm_after_pooling=False, class_token=False)  # the file tells
    tuned = build_on_trunk(asked, tmp_path / "tiny.npz", 32, 5)
    before = model.get_layer("predictions").input if top else model.output
    expected = keras.Model(model.input, before)(images(32))
    found = keras.Model(tuned.input, tuned.layers[-1].input)(images(32))
    assert np.ptp(expected) > 0.1
    np.testing.assert_allclose(found, expected, atol=1e-5)


@pytest.mark.parametrize(("loss", "bias"), [("softmax", 0.0), ("sigmoid", -math.log(5))])
def test_a_new_head_starts_where_its_loss_wants_it(
    loss: str, bias: float, large: keras.Model, tmp_path, monkeypatch
):
    module, built = sys.modules["keras_vit.train.finetune_recipe"], []
    keras_vit.save_checkpoint(large, tmp_path / "tiny.npz")
    monkeypatch.setattr(module, "row_of", lambda *_: ROW)
    monkeypatch.setattr(
        module,
        "run",
        lambda config, workdir, procedure: built.append((procedure.build(5), procedure.image_size)),
    )
    run = RunConfig(data=DataConfig(kind="digits"), loop=LoopConfig(total_steps=1), loss=loss)
    config = FinetuneConfig(run=run, weights=str(tmp_path / "tiny.npz"), image_size=48)
    module.run_finetuning(config, tmp_path)
    [(model, size)] = built
    kernel, found = model.get_layer("predictions").get_weights()
    assert size == 48 and not kernel.any()
    np.testing.assert_allclose(found, [bias] * 5, rtol=1e-6)
    copy = copy_with_new_head(large, 48, 5, bias=bias)
    np.testing.assert_allclose(
        copy.get_layer("predictions").get_weights()[1], [bias] * 5, rtol=1e-6
    )
    assert FinetuneConfig(run=run, weights="x").image_size == 384  # arXiv:2010.11929, B.1.1


def test_the_model_that_is_given_stays_as_it_is():
    model = trained()
    before = state(model.layers)
    copy = copy_with_new_head(model, 32, 2)
    for variable in copy.trainable_variables:
        variable.assign(variable + 1.0)
    after = state(model.layers)
    assert before.keys() == after.keys() and all(
        (before[name] == after[name]).all() for name in before
    )


@pytest.mark.parametrize(
    "options",
    [
        {"classifier": "gap"},
        {"classifier": "map"},
        {"position_embedding": "sincos2d"},
        {"position_embedding": "learned_2d"},
        {"position_embedding": "relative"},
        {"position_placement": "every_layer"},
        {"include_top": False, "pooling": "token"},
        {"input_shape": (None, None, 3)},
    ],
    ids=str,
)
def test_features_are_those_of_the_model(options: dict):
    model = trained(**options)
    copy = copy_with_new_head(model, 32, 2)
    features = (
        model.get_layer("predictions").input
        if "predictions" in state_names(model)
        else model.output
    )
    expected = keras.Model(model.input, features)(images(32))
    found = keras.Model(copy.input, copy.get_layer("predictions").input)(images(32))
    np.testing.assert_allclose(
        *map(keras.ops.convert_to_numpy, (found, expected)), rtol=1e-5, atol=1e-6
    )


def state_names(model: keras.Model) -> set[str]:
    return {layer.name for layer in model.layers}


@pytest.mark.parametrize("name", ["BiT_R50x1", "R26_ViT_S32"])
def test_networks_with_convolutions_take_another_size(name: str):
    if name.startswith("BiT"):
        row = replace(RESNET_VARIANTS[name], name="tiny", units=(1, 1))
    else:
        stem = replace(VIT_VARIANTS[name].stem, units=(1, 1))
        row = replace(
            VIT_VARIANTS[name], name="tiny", width=16, depth=1, num_heads=2, mlp_dim=32, stem=stem
        )
    model = copy_with_new_head(trained(row=row, image_size=64), 128, 3)
    assert model.input_shape == (None, 128, 128, 3) and model.output_shape == (None, 3)
    assert not keras.ops.convert_to_numpy(model(images(128, 1))).any()


@pytest.mark.parametrize("way", ["file", "memory"])
def test_an_axial_vit_takes_another_size(way: str, tmp_path: Path):
    row = replace(ROW, axial=True)
    model = trained(row=row)
    if way == "file":
        keras_vit.save_checkpoint(model, tmp_path / "tiny.npz")
        tuned = build_on_trunk(row, tmp_path / "tiny.npz", 48, 5)
    else:
        tuned = copy_with_new_head(model, 48, 5)
    assert tuned.get_layer("encoderblock_1").grid == (6, 6)
    old, new = state(model.layers), state(tuned.layers)
    kept = {name for name in old if not name.startswith(("posembed", "predictions"))}
    assert kept == {name for name in new if not name.startswith(("posembed", "predictions"))}
    assert all((old[name] == new[name]).all() for name in kept)
    assert not keras.ops.convert_to_numpy(tuned(images(48))).any()


def test_an_axial_resnet_keeps_its_size():
    model = trained(
        row=replace(RESNET_VARIANTS["AxialResNet50"], name="tiny", units=(1, 1)), image_size=48
    )
    features = keras.Model(model.input, model.get_layer("avg_pool").output)
    copy = copy_with_new_head(model, 48, 5)
    found = keras.Model(copy.input, copy.get_layer("avg_pool").output)
    np.testing.assert_allclose(
        *(keras.ops.convert_to_numpy(part(images(48))) for part in (features, found)), rtol=1e-5
    )
    with pytest.raises(
        ValueError,
        match=r"cannot change its image size.*images of \(64, 64\), a model of \(48, 48\)",
    ):
        copy_with_new_head(model, 64, 5)


def in_front(scaling: keras.layers.Layer, model: keras.Model) -> keras.Model:
    """As users build it: a scaling, a model of ours, a head of their own."""
    given = keras.Input((32, 32, 3))
    hidden = keras.layers.Dense(4)(keras.layers.Dropout(0.1)(model(scaling(given))))
    return keras.Model(given, hidden)


@pytest.mark.parametrize("way", ["include_preprocessing", "in front"])
def test_what_scales_pixels_in_front_is_left_out(way: str):
    """The head still reads what it reads of a model that is given pixels in [-1, 1]."""
    if way == "in front":
        plain = trained(include_top=False, pooling="token", classes=1000)
        model = in_front(keras.layers.Rescaling(1 / 127.5, offset=-1), plain)
    else:
        plain, model = trained(), trained(include_preprocessing=True)
        plain = keras.Model(plain.input, plain.get_layer("predictions").input)
    copy = copy_with_new_head(model, 32, 5)
    features = keras.Model(copy.input, copy.get_layer("predictions").input)
    np.testing.assert_allclose(features(images(32)), plain(images(32)), rtol=1e-5, atol=1e-5)
    assert copy.output_shape == (None, 5)


def layers_in_front(way: str) -> keras.Model:
    """Models of 48 x 48 pixels, from 0 to 255 but for one, whose trunk does not see them whole."""
    given = keras.Input((None, None, 3) if way == "any size" else (48, 48, 3))
    scale = keras.layers.Rescaling(1 / 127.5, offset=-1)
    resize = keras.layers.Resizing(32, 32)
    if way == "padded black":
        hidden = scale(keras.layers.ZeroPadding2D(8)(keras.layers.Resizing(16, 16)(given)))
    elif way == "cropped":
        hidden = keras.layers.CenterCrop(32, 32)(scale(given))
    elif way == "nested":
        first = keras.Input((48, 48, 3))
        inner = keras.Model(first, keras.layers.RandomFlip(seed=1)(resize(first)))
        hidden = keras.Sequential([inner, scale])(given)
    elif way == "operation":
        hidden = keras.ops.image.resize(given, (32, 32), interpolation="nearest") / 127.5 - 1
    elif way == "pixels from -1 to 1":
        hidden = resize(given)
    else:
        hidden = scale(resize(given))
    trunk = trained(include_top=False, pooling="token", classes=1000)
    return keras.Model(given, keras.layers.Dense(4)(trunk(hidden)), name="of_a_user")


WAYS = [
    "resized",
    "any size",
    "cropped",
    "padded black",
    "nested",
    "operation",
    "pixels from -1 to 1",
]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.sampled(3)
def test_what_resizes_crops_or_pads_in_front_is_kept(way: str, tmp_path: Path):
    model = layers_in_front(way)
    levels = np.random.default_rng(0).integers(0, 256, (3, 48, 48, 3)).astype("float32")
    pixels = levels / np.float32(127.5) - 1
    trained_on = pixels if way == "pixels from -1 to 1" else levels
    seen = keras.Model(model.input, model.layers[-1].input)(trained_on, training=False)
    copy = copy_with_new_head(model, 48, 5)
    features = keras.Model(copy.input, copy.layers[-1].input)(pixels, training=False)
    np.testing.assert_allclose(features, seen, rtol=1e-4, atol=1e-4)
    assert "32 x 32" in describe_kept(model, 48)
    # one range, whoever asks: also of the file
    copy.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert pixels_of(copy).range == pixels_of(loaded).range == [-1, 1]
    again = copy_with_new_head(loaded, 48, 5)
    np.testing.assert_allclose(
        keras.Model(again.input, again.layers[-1].input)(pixels, training=False),
        features,
        atol=1e-4,
    )
    # the weights alone are those of the trunk's size
    copy.layers[-1].kernel.assign(keras.ops.ones_like(copy.layers[-1].kernel))
    keras_vit.save_checkpoint(copy, tmp_path / "model.npz")
    bare = keras_vit.application(ROW)(weights=tmp_path / "model.npz", classes=5)
    assert bare.input_shape[1:3] == (32, 32) and bare.output_shape == (None, 5)


def test_augmentation_in_front_is_kept_for_training_alone():
    given = keras.Input((32, 32, 3))
    flipped = keras.layers.RandomFlip("horizontal", seed=0)(given)
    trunk = trained(include_top=False, pooling="token", classes=1000)
    model = keras.Model(given, keras.layers.Dense(4)(trunk(flipped)))
    copy = copy_with_new_head(model, 32, 5)
    features = keras.Model(copy.input, copy.layers[-1].input)
    photos = images(32, 16)
    np.testing.assert_allclose(features(photos, training=False), trunk(photos), atol=1e-5)
    errors = np.abs(features(photos, training=True) - trunk(photos)).max(axis=1)
    assert 0 < np.count_nonzero(errors > 1e-3) < 16  # some are flipped


def augmented(*layers: keras.layers.Layer) -> keras.Model:
    given = hidden = keras.Input((32, 32, 3))
    for layer in layers:
        hidden = layer(hidden)
    trunk = trained(include_top=False, pooling="token", classes=1000)
    return keras.Model(given, keras.layers.Dense(4)(trunk(hidden)))


@pytest.mark.parametrize(
    "layer",
    [
        lambda: keras.layers.RandomFlip("horizontal"),
        lambda: keras.layers.Pipeline(
            [keras.layers.RandomFlip(), keras.layers.RandomRotation(0.1)]
        ),
    ],
    ids=["flip", "pipeline"],
)
def test_augmentation_draws_what_the_seed_of_the_run_says(layer):
    """Whatever was drawn before, and without a trace in the given model."""
    model, seen = augmented(layer()), []
    own = model.layers[1]
    before = [keras.ops.convert_to_numpy(v) for v in own.variables]
    for _ in range(2):
        keras.utils.set_random_seed(5)
        copy = copy_with_new_head(model, 32, 5)
        features = keras.Model(copy.input, copy.layers[-1].input)
        seen.append([np.asarray(features(images(32), training=True)) for _ in range(2)])
        model(images(32), training=False)
    np.testing.assert_array_equal(seen[0], seen[1])
    assert np.abs(seen[0][0] - seen[0][1]).max() > 1e-3  # the second batch is flipped otherwise
    for variable, value in zip(own.variables, before, strict=True):
        np.testing.assert_array_equal(variable, value)


class Inverted(keras.layers.Layer):
    def call(self, images, training=None):
        return -images if training else images


@pytest.mark.parametrize("name", ["RandAugment", "AugMix", "AutoContrast", "Inverted"])
def test_every_layer_that_changes_images_in_training_is_named(name: str):
    """Also those that draw within inner layers, or change images in training alone."""
    options = {"value_range": (-1, 1), "name": "changes"}
    layer = (
        Inverted(name="changes") if name == "Inverted" else getattr(keras.layers, name)(**options)
    )
    assert "(changes)" in describe_kept(augmented(layer), 32)


def test_layers_of_one_name_in_nested_models_are_kept():
    inner = augmented(keras.layers.Resizing(32, 32, name="resizing"))
    given = keras.Input((64, 64, 3))
    outer = keras.Model(given, inner(keras.layers.Resizing(32, 32, name="resizing")(given)))
    copy = copy_with_new_head(outer, 64, 5)
    assert [layer.name for layer in copy.layers[1:3]] == ["resizing", "resizing_1"]


def test_the_hash_of_a_start_covers_the_layers_in_front():
    def digest(*layers: keras.layers.Layer) -> str:
        model = augmented(*layers)
        return start_sha256(model, copy_with_new_head(model, 32, 2))

    flip = [digest(keras.layers.RandomFlip("horizontal", seed=seed)) for seed in (1, 1, 2)]
    plain = [digest(), digest(keras.layers.Rescaling(1.0))]
    assert flip[0] == flip[1] and plain[0] == plain[1]
    cropped = digest(keras.layers.Resizing(40, 40), keras.layers.CenterCrop(32, 32))
    assert len({flip[0], flip[2], plain[0], cropped}) == 4
    # inner layers have other names each time
    nested = [digest(keras.layers.Pipeline([keras.layers.RandomFlip()])) for _ in range(2)]
    assert nested[0] == nested[1]


def test_layers_that_hide_the_size_of_images_are_refused():
    given = keras.Input((None, None, 3))
    cropped = keras.layers.Cropping2D(2)(given)
    model = keras.Model(
        given, trained(image_size=32, include_top=False, pooling="token", classes=1000)(cropped)
    )
    assert copy_with_new_head(model, 36, 5).get_layer("embedding").input.shape[1] == 32
    with pytest.raises(ValueError, match="image size must be a multiple of 8 pixels"):
        copy_with_new_head(model, 32, 5)


def test_a_recipe_begins_from_a_file_of_keras(tmp_path: Path, capsys: pytest.CaptureFixture):
    """What the recipe says of weights, row and options is dropped; the hash tells two files of one
    name apart.
    """
    plain = trained(include_top=False, pooling="token", classes=1000)
    file = tmp_path / "pets.keras"
    in_front(keras.layers.Rescaling(1 / 127.5, offset=-1), plain).save(file)
    run = RunConfig(data=DataConfig(kind="digits"), loop=LoopConfig(total_steps=1))
    config = FinetuneConfig(
        run=run, model=str(file), weights="imagenet21k", variant={"depth": 9}, image_size=48
    )
    recorded, build = settle(config)
    assert "takes pixels from 0 to 255" in capsys.readouterr().out
    model = build(5)
    assert model.input_shape == (None, 48, 48, 3) and not keras.ops.any(model(images(48)))
    old, new = state(plain.layers), state(model.layers)
    np.testing.assert_array_equal(
        *(each["encoderblock_1/mlp/dense_1/kernel"] for each in (old, new))
    )
    assert recorded.variant == {} and recorded.weights.startswith("sha256 ")
    plain.get_layer("embedding").bias.assign_add(keras.ops.ones(16))
    in_front(keras.layers.Rescaling(1 / 127.5, offset=-1), plain).save(file)
    assert settle(config)[0].weights != recorded.weights
    halves = replace(config, run=replace(run, devices=DevicesConfig(precision="mixed_bfloat16")))
    with pytest.raises(
        ValueError, match=r"saved with. Leave out `precision`. Received: mixed_bfloat16"
    ):
        settle(halves)


@pytest.mark.parametrize("name", ["model.npz", "model.safetensors"])
def test_a_recipe_records_a_hash_of_the_file_of_its_weights(tmp_path: Path, name: str):
    """The same path with other weights is another run; the same weights written again are not."""
    model, file = trained(), tmp_path / name
    run = RunConfig(data=DataConfig(kind="digits"), loop=LoopConfig(total_steps=1))
    row = {"patch_size": 8, "width": 16, "depth": 2, "num_heads": 2, "mlp_dim": 32}
    config = FinetuneConfig(
        run=run, model="ViT_Ti16", weights=str(file), variant=row, image_size=32
    )
    keras_vit.save_checkpoint(model, file)
    recorded, build = settle(config)
    assert recorded.weights.startswith(f"{file}, sha256 ")
    assert build(5).output_shape == (None, 5)
    keras_vit.save_checkpoint(model, file)
    assert settle(config)[0] == recorded
    model.get_layer("embedding").bias.assign_add(keras.ops.ones(16))
    keras_vit.save_checkpoint(model, file)
    assert settle(config)[0].weights != recorded.weights
    for pinned in ("none", "augreg_in21k"):
        assert settle(replace(config, weights=pinned))[0].weights == pinned


def test_what_a_file_of_keras_brings_is_not_given_again():
    recipe = str(Path(__file__).parents[2] / "experiments/configs/finetune.py")
    assert load_config(recipe, ["model=pets.keras"]).model == "pets.keras"
    with pytest.raises(
        ValueError, match=r"pets\.keras contains its own.*Leave out weights, variant\.depth"
    ):
        load_config(recipe, ["model=pets.keras", "weights=x.npz", "variant.depth=3"])


def test_a_trunk_that_was_trained_on_other_pixels_is_refused():
    model = in_front(
        keras.layers.Rescaling(1 / 255), trained(include_top=False, pooling="token", classes=1000)
    )
    with pytest.raises(
        ValueError, match=r"was trained on pixels from 0 to 1. Expected: pixels from -1 to 1"
    ):
        copy_with_new_head(model, 32, 2)


@pytest.mark.parametrize(
    ("options", "size", "message"),
    [
        (
            {"include_top": False},
            32,
            "must return one vector per image. Build it with a head, or with `pooling`",
        ),
        ({}, 33, "The image size must be a multiple of 8 pixels"),
        ({"position_embedding": "relative"}, 48, "relative positions cannot change its image size"),
    ],
)
def test_models_that_cannot_be_fine_tuned_are_refused(options: dict, size: int, message: str):
    with pytest.raises(ValueError, match=message):
        copy_with_new_head(trained(**options), size, 2)
