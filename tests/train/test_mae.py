"""Masked autoencoders in training: the loss against NumPy, the masks, learning, and what a run
leaves.
"""

import dataclasses
import shutil
import sys
from pathlib import Path

import keras
import numpy as np
import pytest

pytest.importorskip("tensorflow")
pytest.importorskip("sklearn")

import keras_vit  # noqa: E402
from keras_vit.devices import DevicesConfig  # noqa: E402
from keras_vit.models.mae import masked_autoencoder  # noqa: E402
from keras_vit.train import (  # noqa: E402
    DataConfig,
    FinetuneConfig,
    LoopConfig,
    MAEConfig,
    OptimizerConfig,
    RunConfig,
    mae,
    pretrain_mae,
    run_finetuning,
)
from keras_vit.train.learner import make_learner  # noqa: E402
from keras_vit.train.mae import reconstruction  # noqa: E402
from keras_vit.train.optimizers import make_optimizer  # noqa: E402

pytestmark = pytest.mark.tensorflow

SMALL = {"decoder_width": 16, "decoder_depth": 1, "decoder_heads": 2}
TINY = {"name": "tiny", "patch_size": 4, "width": 16, "depth": 2, "num_heads": 2, "mlp_dim": 32}
LOOP = LoopConfig(total_steps=4, log_every=1, evaluate_every=2, checkpoint_every=2)


def config_of(run: dict | None = None, **changes) -> MAEConfig:
    settings = {
        "data": DataConfig(kind="digits", flip=False),
        "batch_size": 16,
        "loop": LOOP,
        "devices": DevicesConfig(kind="one"),
        **(run or {}),
    }
    options = {"model": "MAE_B16", "variant": TINY, "image_size": 16, **SMALL, **changes}
    return MAEConfig(run=RunConfig(**settings), **options)


def outputs(seed: int = 0) -> list[np.ndarray]:
    """Predictions, targets and mask of 5 images."""
    random = np.random.RandomState(seed)
    mask = (random.uniform(size=(5, 16)).argsort(1).argsort(1) >= 4).astype("float32")
    return [*random.normal(size=(2, 5, 16, 48)).astype("float32"), mask]


def test_the_loss_is_the_mean_squared_error_of_the_hidden_patches():
    predictions, targets, mask = outputs()
    losses, explained = map(np.array, reconstruction(None, (predictions, targets, mask)))
    assert losses.shape == explained.shape == (5,) and losses.dtype == np.float32
    for image in range(5):
        hidden = [place for place in range(16) if mask[image, place] == 1]
        errors = [((predictions[image, p] - targets[image, p]) ** 2).sum() / 48 for p in hidden]
        assert len(hidden) == 12
        assert losses[image] == pytest.approx(sum(errors) / 12, rel=1e-5)
    # Of all images together it is that of the authors, since all hide the same number of patches.
    theirs = (((predictions - targets) ** 2).mean(-1) * mask).sum() / mask.sum()
    assert losses.mean() == pytest.approx(theirs, rel=1e-5)


def test_visible_patches_do_not_count():
    predictions, targets, mask = outputs()
    before = reconstruction(None, (predictions, targets, mask))
    noise = 10 * np.random.RandomState(1).normal(size=targets.shape).astype("float32")
    visible, hidden = (1 - mask)[..., None], mask[..., None]
    for changed in (
        (predictions + noise * visible, targets, mask),
        (predictions, targets + noise * visible, mask),
    ):
        for old, new in zip(before, reconstruction(None, changed), strict=True):
            np.testing.assert_array_equal(np.array(old), np.array(new))
    elsewhere, _ = reconstruction(None, (predictions, targets + noise * hidden, mask))
    assert np.abs(np.array(elsewhere) - np.array(before[0])).min() > 10


def test_the_explained_share_is_1_for_the_truth_and_0_for_its_mean():
    _, targets, mask = outputs()
    means = np.broadcast_to(targets.mean(-1, keepdims=True), targets.shape)
    for predictions, share in ((targets, 1), (means, 0), ((targets + means) / 2, 0.75)):
        explained = np.array(reconstruction(None, (predictions, targets, mask))[1])
        np.testing.assert_allclose(explained, share, atol=1e-5)
    assert np.array(reconstruction(None, (-9 * targets, targets, mask))[1]).max() == 0


def test_it_learns(tiny_vit):
    """Images of one color: whichever patches are hidden, the others tell it."""
    row = dataclasses.replace(tiny_vit, depth=1)
    model = masked_autoencoder(row, 32, normalize_pixels=False, **SMALL)
    config = OptimizerConfig(name="adam", learning_rate=1e-2, schedule="constant")
    optimizer = make_optimizer(config, model, 40)
    learner = make_learner(model, optimizer, batch_rows=8, objective=reconstruction)
    random = np.random.RandomState(0)
    images = random.randint(0, 256, (8, 1, 1, 3)).repeat(32, 1).repeat(32, 2).astype("uint8")
    table = np.array(model.get_layer("posembed_input").pos_embedding)
    losses = []
    for _ in range(40):
        noise = random.uniform(size=(8, 16)).astype("float32")
        batch = (images, noise), np.zeros(8, "int64"), np.ones(8, "float32")
        losses.append(learner.train_on_batch(*batch, return_dict=True)["loss"])
    assert np.mean(losses[-5:]) < 0.3 * losses[0]
    np.testing.assert_array_equal(np.array(model.get_layer("posembed_input").pos_embedding), table)


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> tuple[Path, dict]:
    folder = tmp_path_factory.mktemp("mae")
    loop = dataclasses.replace(LOOP, total_steps=1, evaluate_every=0, checkpoint_every=0)
    return folder, pretrain_mae(config_of({"loop": loop}, variant={**TINY, "depth": 1}), folder)


def test_a_run_leaves_a_picture_an_encoder_and_a_folder_for_transformers(finished):
    folder, results = finished
    assert 0 < results["validation/loss"] < 3 and 0 <= results["validation/accuracy"] <= 1
    assert results["validation/examples"] == 360
    assert (folder / "reconstructions.png").stat().st_size > 10_000
    report = (folder / "report.md").read_text(encoding="utf-8")
    assert "# tiny, masked autoencoder of digits" in report
    assert "ViTMAEForPreTraining.from_pretrained" in report
    assert "shows validation images" in report and "scaled by mean and variance" in report
    with np.load(folder / "model.npz") as arrays:
        assert {"cls", "embedding/kernel", "Transformer/posembed_input/pos_embedding"} <= set(
            arrays
        )
        assert not any("decoder" in name or "mask" in name for name in arrays)
    names = {"config.json", "model.safetensors", "preprocessor_config.json"}
    assert {path.name for path in (folder / "vit_mae").iterdir()} == names


def test_the_encoder_of_a_run_is_loaded_from_both_files(finished):
    folder, _ = finished
    row = keras_vit.variants.FAMILY_VARIANTS["MAE_B16"]
    row = dataclasses.replace(row, **{**TINY, "depth": 1})
    options = {"include_top": False, "input_shape": (16, 16, 3)}
    models = [
        keras_vit.application(row)(weights=folder / name, **options)
        for name in ("model.npz", "vit_mae")
    ]
    images = np.random.RandomState(0).uniform(-1, 1, (2, 16, 16, 3)).astype("float32")
    first, second = (keras.ops.convert_to_numpy(model(images)) for model in models)
    assert first.shape == (2, 17, 16)
    np.testing.assert_array_equal(first, second)


def test_the_report_says_what_the_picture_shows(tmp_path):
    models = [
        masked_autoencoder(
            dataclasses.replace(
                keras_vit.variants.FAMILY_VARIANTS["MAE_B16"], **{**TINY, "depth": 1}
            ),
            16,
            normalize_pixels=normalize,
            class_token=class_token,
            **SMALL,
        )
        for normalize, class_token in ((True, True), (False, False))
    ]
    _, normalized = mae._write_vit_mae(models[0], None, tmp_path)
    assert "training images" in normalized and "scaled by mean and variance" in normalized
    encoder, colors = mae._write_vit_mae(models[1], "a validation set", tmp_path)
    assert "cannot express" in encoder  # has no class token
    assert "validation images" in colors and "scaled" not in colors


def test_the_picture_has_the_colors_of_the_images(tiny_vit, monkeypatch, tmp_path):
    drawn = {}
    monkeypatch.setattr(mae, "draw_rows", lambda path, rows: drawn.update(rows))
    images = np.random.default_rng(0).integers(0, 256, (2, 32, 32, 3)).astype("uint8")
    model = masked_autoencoder(tiny_vit, 32, normalize_pixels=False, **SMALL)
    mae._draw(model, images, tmp_path / "picture.png")
    np.testing.assert_allclose(drawn["image"], images / 255, atol=1e-6)
    visible = (drawn["visible"] != 0.5).any(axis=-1)
    assert visible.any() and not visible.all()
    for name in ("visible", "reconstruction"):
        np.testing.assert_allclose(drawn[name][visible], images[visible] / 255, atol=1e-6)
    assert (drawn["visible"][~visible] == 0.5).all()
    first = drawn["visible"]
    mae._draw(model, images, tmp_path / "picture.png")  # as in the picture of the next evaluation
    np.testing.assert_array_equal(drawn["visible"], first)


def test_what_does_not_go_together_is_said(tmp_path):
    for changes in (
        {"label_smoothing": 0.1},
        {"loss": "sigmoid"},
        {"data": DataConfig(kind="digits", mixup_alpha=0.2)},
    ):
        with pytest.raises(ValueError, match="A masked autoencoder has its own loss"):
            config_of(changes)
    with pytest.raises(ValueError, match="BiT_R50x1 has no patches to hide"):
        pretrain_mae(config_of(model="BiT_R50x1", variant={}), tmp_path)
    with pytest.raises(ValueError, match="does not accept head_bias. Valid: classifier, posi"):
        pretrain_mae(config_of(model_options={"head_bias": 1.0}), tmp_path)
    with pytest.raises(ValueError, match="R_ViT_Ti16 cannot be a masked autoencoder"):
        pretrain_mae(config_of(model="R_ViT_Ti16", variant={}, image_size=32), tmp_path)
    assert not (tmp_path / "config.json").exists()


# --- whole runs


@pytest.fixture(scope="module")
def one(tmp_path_factory) -> tuple[Path, dict]:
    folder = tmp_path_factory.mktemp("one")
    return folder, pretrain_mae(config_of(), folder)


def losses_of(folder: Path) -> np.ndarray:
    lines = (folder / "metrics.csv").read_text(encoding="utf-8").splitlines()
    values = [line.split(",")[2] for line in lines if line.split(",")[1] == "train/loss"]
    return np.array(values, "float64")


@pytest.mark.slow
def test_a_resumed_run_has_the_bits_of_an_uninterrupted_one(one, tmp_path):
    folder, results = one
    stopped = tmp_path / "stopped"
    shutil.copytree(folder, stopped)
    shutil.rmtree(stopped / "checkpoints" / "0000000004")
    (stopped / "model.npz").unlink()
    again = pretrain_mae(config_of(), stopped)
    assert again == results
    assert (stopped / "model.npz").read_bytes() == (folder / "model.npz").read_bytes()


@pytest.mark.slow
@pytest.mark.parametrize("how", ["two replicas", "two micro-batches", "remat"])
def test_other_devices_have_the_same_masks_and_losses(one, tmp_path, two_replicas, how):
    """With other masks, the losses would differ in the second digit."""
    folder, results = one
    run = {
        "two replicas": {"devices": DevicesConfig(kind="mirrored", names=("CPU:0", "CPU:1"))},
        "two micro-batches": {"accumulation_steps": 2},
        "remat": {"remat": True},
    }[how]
    other = pretrain_mae(config_of(run), tmp_path / "other")
    np.testing.assert_allclose(losses_of(tmp_path / "other"), losses_of(folder), rtol=2e-6)
    assert other["validation/loss"] == pytest.approx(results["validation/loss"], rel=2e-6)


@pytest.mark.slow
def test_fine_tuning_starts_from_the_encoder(one, tmp_path):
    folder, _ = one
    config = FinetuneConfig(
        run=config_of().run,
        weights=str(folder / "model.npz"),
        model="MAE_B16",
        variant=TINY,
        image_size=24,  # positions are resampled
    )
    results = run_finetuning(config, tmp_path)
    assert 0 <= results["validation/accuracy"] <= 1
    with np.load(folder / "model.npz") as before, np.load(tmp_path / "model.npz") as after:
        kernel = "Transformer/encoderblock_1/MlpBlock_3/Dense_0/kernel"
        assert 0 < np.abs(before[kernel] - after[kernel]).max() < 0.05
        table = "Transformer/posembed_input/pos_embedding"
        assert (before[table].shape, after[table].shape) == ((1, 17, 16), (1, 37, 16))


def test_each_setting_reaches_the_model(tmp_path: Path, monkeypatch):
    """All differ from their defaults."""
    procedures, built = [], []
    module = sys.modules[pretrain_mae.__module__]
    monkeypatch.setattr(
        module, "run", lambda config, folder, procedure: procedures.append(procedure)
    )
    monkeypatch.setattr(
        module, "masked_autoencoder", lambda *given, **named: built.append((given, named))
    )
    options = {"classifier": "gap", "position_embedding": "learned_2d", "dropout_rate": 0.1}
    decoder = {"decoder_width": 24, "decoder_depth": 3, "decoder_heads": 6}
    changes = {"mask_share": 0.5, "normalize_pixels": False, **decoder}
    pretrain_mae(config_of(model="ViT_Ti16", model_options=options, **changes), tmp_path)
    (procedure,) = procedures
    assert procedure.image_size == 16 and procedure.noise_length == 16
    procedure.build(10)
    (((row, size), named),) = built
    assert (row.width, size) == (16, 16)
    encoder = {"position_embedding": "learned_2d", "dropout_rate": 0.1}
    assert named == {**changes, **encoder, "class_token": False}
