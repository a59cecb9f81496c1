"""Masked patch prediction against NumPy: targets, what the loss sees, where it starts, and what
fine-tuning takes.
"""

import dataclasses
import math
import sys

import keras
import numpy as np
import pytest

pytest.importorskip("tensorflow")

import keras_vit  # noqa: E402
from keras_vit.layers import MaskTokens  # noqa: E402
from keras_vit.layers.tokens import MASKED  # noqa: E402
from keras_vit.train import (  # noqa: E402
    DataConfig,
    LoopConfig,
    MaskedPatchesConfig,
    OptimizerConfig,
    RunConfig,
    masked_patches,
    pretrain_masked_patches,  # noqa: E402
)
from keras_vit.train.learner import make_learner  # noqa: E402
from keras_vit.train.masked_patches import (  # noqa: E402
    TARGETS,
    class_colors,
    color_classes,
    masked_patch_model,
    masked_patch_objective,
)
from keras_vit.train.optimizers import make_optimizer  # noqa: E402

pytestmark = pytest.mark.tensorflow

SIDE, SIZE = 8, 32
IMAGES = (
    np.random.RandomState(0).randint(0, 256, (5, 4, 4, 3)).repeat(8, 1).repeat(8, 2).astype("uint8")
)
IMAGES = (IMAGES * 0.8 + np.random.RandomState(1).uniform(0, 51, (5, 32, 32, 3))).astype("uint8")
PIXELS = IMAGES.astype("float32") / 127.5 - 1


@pytest.fixture
def row(tiny_vit):
    return dataclasses.replace(tiny_vit, patch_size=SIDE)


def build(row, target: str = "mean_color", **options) -> keras.Model:
    return masked_patch_model(
        row, SIZE, target, mask=MaskTokens(seed=0, name="mask_token"), **options
    )


def patches_by_hand() -> np.ndarray:
    """(B, N, P, P, 3), cut out one by one."""
    places = [(row, column) for row in range(0, SIZE, SIDE) for column in range(0, SIZE, SIDE)]
    return np.stack(
        [PIXELS[:, row : row + SIDE, column : column + SIDE] for row, column in places], axis=1
    )


def class_by_hand(color: np.ndarray) -> int:
    """Of one colour in [-1, 1]: 3 bits for each channel."""
    red, green, blue = (min(int((channel + 1) / 2 * 8), 7) for channel in color.astype("float64"))
    return red * 64 + green * 8 + blue


def test_targets_equal_those_of_a_plain_loop(row):
    cut = patches_by_hand()
    mean = [
        [class_by_hand(patch.mean((0, 1), dtype="float64")) for patch in image] for image in cut
    ]
    small = cut.reshape(5, 16, 4, 2, 4, 2, 3).mean((3, 5), dtype="float64").reshape(5, 16, 16, 3)
    expected = {
        "mean_color": np.array(mean),
        "small_patch": np.apply_along_axis(class_by_hand, -1, small),
        "pixels": cut.reshape(5, 16, -1),
    }
    for target, values in expected.items():
        found = keras.ops.convert_to_numpy(build(row, target)(PIXELS)[1])
        assert found.shape == values.shape
        # A mean on the edge of a bin may fall to either side.
        assert (np.abs(found - values) < 1e-6).mean() > 0.995
        assert len(np.unique(found)) > 40


def test_a_patch_is_predicted_from_its_own_token(row):
    """Blocks that add nothing mix no tokens, so a patch changes its own prediction alone."""
    model = masked_patch_model(
        row, SIZE, "mean_color", mask=MaskTokens(swap_share=0.0, seed=0, name="mask_token")
    )
    draw = np.random.RandomState(0)
    for variable in model.trainable_variables:
        of_block = "encoderblock" in variable.path
        variable.assign(np.zeros(variable.shape) if of_block else draw.normal(size=variable.shape))
    before, _, kinds = map(np.array, model(PIXELS[:1]))
    for place in np.flatnonzero(kinds[0] == 0)[:2]:
        rows, columns = (
            slice(SIDE * index, SIDE * (index + 1)) for index in divmod(place, SIZE // SIDE)
        )
        changed = PIXELS[:1].copy()
        changed[:, rows, columns] *= -1
        after = np.array(model(changed)[0])
        assert np.flatnonzero(np.abs(after - before)[0].max(-1) > 1e-3).tolist() == [place]


def test_every_color_is_its_own_class():
    assert color_classes(class_colors(np.arange(512))).numpy().tolist() == list(range(512))


@pytest.mark.parametrize(
    ("target", "start"), [("mean_color", math.log(512)), ("small_patch", math.log(512))]
)
def test_the_loss_starts_at_chance(row, target, start):
    losses, _ = masked_patch_objective(target)(None, build(row, target)(PIXELS, training=True))
    np.testing.assert_allclose(losses, start, rtol=1e-6)


def test_the_squared_error_starts_at_that_of_grey(row):
    model = build(row, "pixels")
    _, targets, kinds = outputs = model(PIXELS)
    losses, _ = masked_patch_objective("pixels")(None, outputs)
    expected = [
        np.square(t.numpy()[k.numpy() > 0]).mean() for t, k in zip(targets, kinds, strict=True)
    ]
    np.testing.assert_allclose(losses, expected, rtol=1e-5)


@pytest.mark.parametrize("target", TARGETS)
def test_only_corrupted_patches_count(row, target):
    predictions, targets, kinds = (
        keras.ops.convert_to_numpy(output) for output in build(row, target)(PIXELS)
    )
    predictions = np.random.RandomState(2).normal(size=predictions.shape).astype("float32")
    objective = masked_patch_objective(target)
    losses, hits = map(np.array, objective(None, (predictions, targets, kinds)))
    elsewhere = (
        predictions
        + 10 * np.random.RandomState(3).normal(size=predictions.shape) * (kinds == 0)[..., None]
    )
    again = objective(None, (elsewhere.astype("float32"), targets, kinds))
    np.testing.assert_allclose(again, (losses, hits), rtol=1e-5)
    there = (
        predictions
        + 10 * np.random.RandomState(3).normal(size=predictions.shape) * (kinds > 0)[..., None]
    )
    assert (
        np.abs(
            np.array(objective(None, (there.astype("float32"), targets, kinds))[0]) - losses
        ).min()
        > 0.1
    )


def test_the_loss_of_an_image_is_the_mean_of_its_corrupted_patches(row):
    _, targets, kinds = (keras.ops.convert_to_numpy(output) for output in build(row)(PIXELS))
    logits = np.random.RandomState(2).normal(size=(5, 16, 512)).astype("float32")
    log_softmax = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    losses, hits = masked_patch_objective("mean_color")(None, (logits, targets, kinds))
    for image in range(5):
        corrupted = np.flatnonzero(kinds[image])
        expected = -np.mean(
            [log_softmax[image, place, targets[image, place]] for place in corrupted]
        )
        assert float(losses[image]) == pytest.approx(expected, rel=1e-5)
        right = [logits[image, place].argmax() == targets[image, place] for place in corrupted]
        assert float(hits[image]) == pytest.approx(np.mean(right))


def test_a_patch_of_pixels_is_right_if_its_mean_color_is():
    """The same pixels in another order, and with red and blue exchanged."""
    patches, kinds = patches_by_hand().reshape(5, 16, -1, 3), np.ones((5, 16), "int32")
    for predictions in (patches[:, :, ::-1], patches[..., ::-1]):
        found, expected = (
            np.apply_along_axis(class_by_hand, -1, pixels.mean(2, dtype="float64"))
            for pixels in (predictions, patches)
        )
        outputs = (predictions.reshape(5, 16, -1), patches.reshape(5, 16, -1), kinds)
        _, hits = masked_patch_objective("pixels")(None, outputs)
        # A mean on the edge of a bin may fall to either side.
        np.testing.assert_allclose(hits, (found == expected).mean(-1), atol=0.07)


@pytest.mark.parametrize(
    "precision", ["float32", pytest.param("mixed_bfloat16", marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.sampled(1)
def test_it_learns(row, target, precision):
    keras.config.set_dtype_policy(precision)
    model = build(row, target, position_embedding="sincos2d", class_token=False)
    config = OptimizerConfig(name="adam", learning_rate=1e-2, schedule="constant")
    learner = make_learner(
        model,
        make_optimizer(config, model, 30),
        batch_rows=5,
        objective=masked_patch_objective(target),
    )
    # what is left of an image tells what was there
    of_one_color = np.broadcast_to(IMAGES[:, :1, :1], IMAGES.shape)
    batch = of_one_color, np.zeros(5, "int64"), np.ones(5, "float32")
    losses = [learner.train_on_batch(*batch, return_dict=True)["loss"] for _ in range(30)]
    assert losses[-1] < 0.7 * losses[0]
    keras.config.set_dtype_policy("float32")


def test_fine_tuning_takes_the_trunk_and_nothing_else(row, tmp_path):
    model = build(row)
    for index, variable in enumerate(model.trainable_variables):
        variable.assign(np.random.RandomState(index).normal(size=variable.shape) * 0.1)
    keras_vit.save_checkpoint(model, tmp_path / "masked.npz")
    trunk = keras_vit.application(row)(
        weights=tmp_path / "masked.npz",
        include_top=False,
        input_shape=(SIZE, SIZE, 3),
        pooling="token",
    )
    for name in ("embedding", "encoderblock_1", "encoder_norm", "posembed_input", "class_token"):
        for mine, theirs in zip(
            trunk.get_layer(name).weights, model.get_layer(name).weights, strict=True
        ):
            np.testing.assert_array_equal(np.array(mine), np.array(theirs))
    assert not {"mask_token", "patch_predictions"} & {layer.name for layer in trunk.layers}


def config_of(**changes) -> MaskedPatchesConfig:
    run = RunConfig(
        data=DataConfig(kind="digits", flip=False),
        batch_size=16,
        loop=LoopConfig(total_steps=4, log_every=2, evaluate_every=2, checkpoint_every=2),
    )
    variant = {
        "name": "tiny",
        "patch_size": 4,
        "width": 16,
        "depth": 2,
        "num_heads": 2,
        "mlp_dim": 32,
    }
    return MaskedPatchesConfig(
        **{"run": run, "model": "ViT_Ti16", "variant": variant, "image_size": 16, **changes}
    )


def test_a_run_leaves_a_picture_and_a_checkpoint(tmp_path):
    results = pretrain_masked_patches(config_of(), tmp_path)
    assert 0 < results["validation/loss"] < math.log(512)
    assert results["validation/examples"] == 360
    assert (tmp_path / "masked_patches.png").stat().st_size > 10_000
    assert "masked patches of digits" in (tmp_path / "report.md").read_text()
    with np.load(tmp_path / "model.npz") as arrays:
        assert {"mask_token", "patch_predictions/kernel", "embedding/kernel"} <= set(arrays)


def test_what_is_pre_trained_on_the_row_of_another_family_is_fine_tuned(tmp_path):
    """The fine-tuned MAE has its norm behind the pooling; the predictions read normalized tokens."""
    mask = MaskTokens(name="mask_token")
    row = dataclasses.replace(
        keras_vit.variants.FAMILY_VARIANTS["MAE_B16"], **{**config_of().variant, "depth": 1}
    )
    model = masked_patch_model(row, 16, "mean_color", mask=mask)
    keras_vit.save_checkpoint(model, tmp_path / "masked.npz")
    fresh = keras_vit.application(row)(
        weights=tmp_path / "masked.npz", include_top=False, input_shape=(16, 16, 3)
    )
    for mine, theirs in zip(
        fresh.get_layer("encoder_norm").weights,
        model.get_layer("encoder_norm").weights,
        strict=True,
    ):
        np.testing.assert_array_equal(np.array(mine), np.array(theirs))


def test_the_picture_shows_predictions_of_corrupted_patches_alone(row, monkeypatch, tmp_path):
    """A model that has not learned predicts the darkest of eight levels."""
    drawn = {}
    monkeypatch.setattr(masked_patches, "draw_rows", lambda path, rows: drawn.update(rows))
    model = build(row)
    masked_patches._draw(model, IMAGES, "mean_color", tmp_path / "picture.png")
    kinds = np.array(model(PIXELS)[2])[0].reshape(4, 4).repeat(SIDE, 0).repeat(SIDE, 1)
    corrupted, images = kinds > 0, IMAGES / 255
    np.testing.assert_allclose(drawn["image"], images, atol=1e-6)
    np.testing.assert_allclose(drawn["predicted"][:, ~corrupted], images[:, ~corrupted], atol=1e-6)
    np.testing.assert_allclose(drawn["predicted"][:, corrupted], 1 / 16, atol=1e-6)
    np.testing.assert_allclose(drawn["predicted, all"], 1 / 16, atol=1e-6)
    np.testing.assert_allclose(drawn["seen"][:, kinds == MASKED], 0.5, atol=1e-6)
    np.testing.assert_allclose(drawn["seen"][:, ~corrupted], images[:, ~corrupted], atol=1e-6)


def test_what_does_not_go_together_is_said(tmp_path):
    with pytest.raises(ValueError, match="`target` must be one of mean_color, small_patch, pixels"):
        config_of(target="hue")
    for changes in (
        {"label_smoothing": 0.1},
        {"loss": "sigmoid"},
        {"data": DataConfig(kind="digits", mixup_alpha=0.2)},
    ):
        with pytest.raises(ValueError, match="has its own loss"):
            config_of(run=dataclasses.replace(config_of().run, **changes))
    with pytest.raises(ValueError, match="BiT_R50x1 has no patch embeddings to mask"):
        pretrain_masked_patches(config_of(model="BiT_R50x1", variant={}), tmp_path)
    with pytest.raises(ValueError, match="does not accept head_bias. Valid: classifier, "):
        pretrain_masked_patches(config_of(model_options={"head_bias": 1.0}), tmp_path)


def test_small_patches_need_patches_that_can_be_brought_down(tiny_vit):
    odd = dataclasses.replace(tiny_vit, patch_size=14)
    with pytest.raises(ValueError, match="is a multiple of 4 pixels. Received: 14"):
        masked_patch_model(odd, 28, "small_patch", mask=MaskTokens(name="mask_token"))


def test_each_setting_reaches_the_model_and_the_loss(tmp_path, monkeypatch):
    """All differ from their defaults."""
    module = sys.modules[pretrain_masked_patches.__module__]
    procedures, built, targets, drawn = [], [], [], []
    monkeypatch.setattr(
        module, "run", lambda config, folder, procedure: procedures.append(procedure)
    )
    monkeypatch.setattr(
        module, "masked_patch_model", lambda *given, **named: built.append((given, named))
    )
    monkeypatch.setattr(module, "masked_patch_objective", targets.append)
    monkeypatch.setattr(module, "_draw", lambda *given: drawn.append(given))
    run = RunConfig(data=DataConfig(kind="digits"), loop=LoopConfig(total_steps=1))
    of_the_paper = MaskedPatchesConfig(run=run)  # appendix B.1.2
    assert of_the_paper.target == "mean_color" and of_the_paper.corruption == 0.5
    assert (of_the_paper.mask_share, of_the_paper.swap_share) == (0.8, 0.1)
    config = MaskedPatchesConfig(
        run=run,
        model="ViT_Ti16",
        variant={"width": 24},
        image_size=48,
        target="pixels",
        corruption=0.15,
        mask_share=0.6,
        swap_share=0.3,
        model_options={"classifier": "gap", "dropout_rate": 0.1},
    )
    pretrain_masked_patches(config, tmp_path)
    (procedure,) = procedures
    procedure.build(10)
    (((row, size, target), named),) = built
    mask = named.pop("mask").get_config()
    assert (row.width, size, target) == (24, 48, "pixels")
    assert named == {"class_token": False, "dropout_rate": 0.1}
    shares = [mask[name] for name in ("rate", "mask_share", "swap_share")]
    assert shares == [0.15, 0.6, 0.3]
    assert targets == ["pixels"] and procedure.image_size == 48
    procedure.preview("model", "images", tmp_path)
    assert drawn == [("model", "images", "pixels", tmp_path / "masked_patches.png")]
