"""Features: those that the model computes, one row for each image, in memory and on disk, also
after a kill.
"""

import importlib
import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import keras
import numpy as np
import pytest
import tiny_families
import warm
from warm import HUNG_SECONDS

pytest.importorskip("tensorflow")

import keras_vit  # noqa: E402
from keras_vit.data import sources  # noqa: E402
from keras_vit.evaluate import feature_store  # noqa: E402
from keras_vit.evaluate.features import extract, feature_model, load  # noqa: E402
from keras_vit.evaluate.outputs import outputs  # noqa: E402
from keras_vit.folder_lock import lock_folder  # noqa: E402
from keras_vit.variants import RESNET_VARIANTS, VIT_VARIANTS  # noqa: E402

pytestmark = [pytest.mark.tensorflow, pytest.mark.usefixtures("shallow")]

RNG = np.random.default_rng(0)
IMAGES = RNG.integers(0, 256, (23, 32, 32, 3)).astype(np.uint8)
LABELS = RNG.integers(0, 3, 23)


@pytest.fixture(scope="module")
def model() -> keras.Model:
    keras.utils.set_random_seed(0)
    return keras_vit.ViT_Ti16(
        weights=None, input_shape=(32, 32, 3), representation_size=20, classes=5
    )


@pytest.fixture
def source() -> sources.Source:
    return sources.arrays(IMAGES, LABELS, name="noise")


def tokens(model: keras.Model) -> np.ndarray:
    """(23, 5, 192), by Keras's own `predict`."""
    to_norm = keras.Model(model.input, model.get_layer("encoder_norm").output)
    return to_norm.predict(IMAGES / np.float32(127.5) - np.float32(1), verbose=0)


@pytest.mark.parametrize(
    "batch_size",
    [pytest.param(1, marks=pytest.mark.slow), 7, pytest.param(128, marks=pytest.mark.slow)],
)
def test_each_layer_gives_what_predict_gives(model, source, batch_size: int):
    all_tokens = tokens(model)
    by_hand = {
        "class_token": all_tokens[:, 0],
        "patch_mean": all_tokens[:, 1:].mean(axis=1),
        "encoder_norm": all_tokens,
        "pre_logits": keras.Model(model.input, model.get_layer("pre_logits").output).predict(
            IMAGES / np.float32(127.5) - np.float32(1), verbose=0
        ),
    }
    for layer, expected in by_hand.items():
        features = extract(model, source, layer=layer, batch_size=batch_size)
        assert features.values.dtype == np.float32 and features.values.shape == expected.shape
        np.testing.assert_allclose(features.values, expected, atol=1e-5)
        assert (features.labels == LABELS).all() and features.indices.tolist() == list(range(23))
        assert features.class_names == ("0", "1", "2")


def test_a_layer_may_be_a_model_or_be_in_several_models(model, source):
    images = keras.Input((32, 32, 3))
    scaled = keras.layers.Rescaling(1 / 127.5, offset=-1, name="scaled")(images)
    outer = keras.Model(images, keras.layers.Dense(2, name="head")(model(scaled)))
    keras.Model(images, outer.get_layer("head")(keras.layers.Lambda(lambda x: -x)(model(images))))
    expected = outer.predict(IMAGES.astype("float32"), verbose=0)
    np.testing.assert_allclose(
        extract(outer, source, layer="head").values, expected, rtol=1e-4, atol=1e-5
    )
    inner = model.predict(IMAGES / np.float32(127.5) - np.float32(1), verbose=0)
    np.testing.assert_allclose(
        extract(outer, source, layer=model.name).values, inner, rtol=1e-4, atol=1e-5
    )
    twice = keras.Model(images, keras.layers.Average()([model(scaled), model(scaled)]))
    with pytest.raises(ValueError, match="has 2 outputs. Expected one: choose another layer"):
        extract(twice, source, layer=model.name)


@pytest.mark.parametrize(
    ("name", "tokens", "has_class_token"),
    [
        ("DeiT_B16_distilled", "encoder_norm", True),
        ("DINOv2_g14_reg4", "encoder_norm", True),
        ("DINOv3_S16plus", "encoder_norm", True),
        ("SigLIP_B16", "encoder_norm", False),
        ("MAE_B16", "encoderblock_1", True),  # it normalizes the mean of the patches
    ],
)
def test_only_patches_are_in_their_mean_for_every_family(
    name: str, tokens: str, has_class_token: bool
):
    """The patches are the last tokens, 16 here, whatever comes before them."""
    model = tiny_families.build(name, input_shape=(32, 32, 3))
    images = IMAGES[:2] / np.float32(127.5) - np.float32(1)
    every = keras.Model(model.input, model.get_layer(tokens).output)(images)
    every = keras.ops.convert_to_numpy(every)
    mean = keras.ops.convert_to_numpy(feature_model(model, "patch_mean")(images))
    np.testing.assert_allclose(mean, every[:, -16:].mean(axis=1), rtol=1e-4, atol=1e-5)
    if has_class_token:
        first = keras.ops.convert_to_numpy(feature_model(model, "class_token")(images))
        np.testing.assert_allclose(first, every[:, 0], rtol=1e-4, atol=1e-5)
    else:
        with pytest.raises(ValueError, match="has no class token"):
            feature_model(model, "class_token")


def test_a_stored_mean_of_the_patches_that_contains_registers_is_not_used(source, tmp_path: Path):
    """An earlier version left only the class token out of it, and recorded no number of tokens."""
    model = tiny_families.build("DINOv3_S16plus", input_shape=(32, 32, 3))
    extract(model, source, layer="patch_mean", output=tmp_path)
    described = json.loads((tmp_path / "features.json").read_text())
    assert described["record"].pop("prefix_tokens") == 5
    (tmp_path / "features.json").write_text(json.dumps(described))
    with pytest.raises(
        ValueError, match="there {'prefix_tokens': None}, here {'prefix_tokens': 5}"
    ):
        extract(model, source, layer="patch_mean", output=tmp_path)


def small(
    scale: float = 1 / 255,
    shift: float = 0.5,
    activation: str = "gelu",
    epsilon: float = 1e-3,
    pool: str = "Average",
    head: str | None = None,
) -> keras.Model:
    """The weights are the same for all options."""
    images, inside = keras.Input((8, 8, 3)), keras.Input((8, 8, 3))
    x = keras.layers.Rescaling(scale)(images) - shift
    x = keras.Model(inside, keras.layers.Dense(4, activation=activation)(inside))(x)
    x = keras.layers.LayerNormalization(epsilon=epsilon)(x)
    x = getattr(keras.layers, f"Global{pool}Pooling2D")()(x)
    x = keras.layers.Dense(3, activation=head, name="head")(x)
    model = keras.Model(images, x, name="small")
    keras_vit.pixels.declare(model, "0..255")
    draws = np.random.default_rng(3)
    model.set_weights([draws.normal(size=array.shape) for array in model.get_weights()])
    return model


SMALL_IMAGES = sources.arrays(IMAGES[:, :8, :8], LABELS, name="noise")


@pytest.mark.parametrize(
    "changed",
    [
        {"scale": 1 / 127.5},
        {"shift": 0.4},
        {"activation": "relu"},
        {"epsilon": 0.1},
        {"pool": "Max"},
        {"head": "softmax"},
    ],
)
def test_another_model_with_the_same_weights_has_other_features(tmp_path: Path, changed: dict):
    first = extract(small(), SMALL_IMAGES, layer="head", output=tmp_path).values
    assert (extract(small(), SMALL_IMAGES, layer="head", output=tmp_path).values == first).all()
    other = small(**changed)
    assert np.abs(extract(other, SMALL_IMAGES, layer="head").values - first).max() > 1e-3
    with pytest.raises(ValueError, match="contains other features: there {'config_sha256': '"):
        extract(other, SMALL_IMAGES, layer="head", output=tmp_path)


def test_another_form_of_gelu_gives_other_features(source, tmp_path: Path):
    row = VIT_VARIANTS["ViT_Ti16"]
    models = [
        keras_vit.application(replace(row, gelu=form))(weights=None, input_shape=(32, 32, 3))
        for form in ("tanh", "quick")
    ]
    models[1].set_weights(models[0].get_weights())
    extract(models[0], source, output=tmp_path)
    with pytest.raises(ValueError, match="there {'config_sha256': '"):
        extract(models[1], source, output=tmp_path)


def test_stored_features_without_a_hash_of_the_config_are_used(tmp_path: Path):
    """As written by an earlier version."""
    first = extract(small(), SMALL_IMAGES, output=tmp_path).values
    described = json.loads((tmp_path / "features.json").read_text())
    assert len(described["record"].pop("config_sha256")) == 64
    (tmp_path / "features.json").write_text(json.dumps(described))
    assert (extract(small(), SMALL_IMAGES, output=tmp_path).values == first).all()


def test_resnets_and_models_without_a_head_have_features_too(tiny_resnet):
    row = tiny_resnet(RESNET_VARIANTS["ResNet50x1"])
    resnet = keras_vit.application(row)(weights=None, input_shape=(32, 32, 3))
    assert feature_model(resnet, "pre_logits").output_shape == (None, 512)
    noise = RNG.uniform(-1, 1, (2, 32, 32, 3)).astype("float32")
    cells = np.asarray(keras.Model(resnet.input, resnet.get_layer("avg_pool").input)(noise))
    assert cells.shape == (2, 4, 4, 512)
    mean = feature_model(resnet, "patch_mean")(noise)
    np.testing.assert_allclose(mean, cells.mean(axis=(1, 2)), rtol=1e-4, atol=1e-6)
    images = keras.Input((32, 32, 3))
    trunk = keras_vit.ViT_Ti16(weights=None, include_top=False, pooling="avg", input_tensor=images)
    assert feature_model(trunk, "pre_logits").output_shape == (None, 192)


def test_the_mean_of_patches_of_a_gap_model_is_what_its_head_reads(source):
    model = keras_vit.ViT_Ti16(weights=None, input_shape=(32, 32, 3), classifier="gap")
    mean, read = (
        extract(model, source, layer=layer).values for layer in ("patch_mean", "pre_logits")
    )
    np.testing.assert_allclose(mean, read, atol=1e-6)


def test_a_crop_gives_the_features_of_what_it_leaves(model):
    framed = np.zeros((3, 64, 64, 3), np.uint8)
    framed[:, 16:48, 16:48] = IMAGES[:3]
    source = sources.arrays(framed, LABELS[:3], name="framed")
    found = extract(model, source, eval_crop="central:0.5").values
    expected = feature_model(model, "pre_logits")(IMAGES[:3] / np.float32(127.5) - np.float32(1))
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_a_folder_holds_what_memory_would(model, source, tmp_path: Path):
    in_memory = extract(model, source)
    on_disk = extract(model, source, output=tmp_path / "features", batch_size=5)
    assert isinstance(on_disk.values, np.memmap)
    np.testing.assert_allclose(on_disk.values, in_memory.values, atol=1e-5)
    for name in ("labels", "indices"):
        assert (getattr(on_disk, name) == getattr(in_memory, name)).all()
    assert on_disk.class_names == in_memory.class_names and on_disk.name == "noise"
    assert np.load(tmp_path / "features" / "features.npy").shape == (23, 20)  # plain NumPy reads it
    names = {path.name for path in (tmp_path / "features").iterdir()}
    assert names == {"features.npy", "labels.npy", "indices.npy", "features.json"}


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_features_that_are_no_numbers_are_not_stored(source, tmp_path: Path, value: float):
    model = keras_vit.ViT_Ti16(weights=None, input_shape=(32, 32, 3), classes=5)
    bias = model.get_layer("encoder_norm").beta
    bias.assign(np.where(np.arange(bias.shape[0]) == 7, value, 0))
    said = "features of image 0 of noise are NaN or infinite. Check the weights"
    for output in (None, tmp_path / "features"):
        with pytest.raises(ValueError, match=said):
            extract(model, source, output=output)
    assert not (tmp_path / "features" / "features.json").exists()


def test_what_is_finished_is_not_computed_again(model, source, tmp_path: Path, monkeypatch):
    first = extract(model, source, output=tmp_path)
    monkeypatch.setattr(
        "keras_vit.evaluate.features.outputs", lambda *_, **__: pytest.fail("computed again")
    )
    again = extract(model, source, output=tmp_path)
    assert (again.values == first.values).all()


def test_two_at_once_do_not_fill_the_same_folder(model, source, tmp_path: Path):
    with lock_folder(tmp_path), pytest.raises(ValueError, match="Another run is using"):
        extract(model, source, output=tmp_path, progress=False)
    assert not any(tmp_path.iterdir())


def test_a_folder_with_other_features_is_refused(model, source, tmp_path: Path):
    extract(model, source, output=tmp_path)
    with pytest.raises(
        ValueError, match=r"contains other features: there \{'layer': 'pre_logits'\}"
    ):
        extract(model, source, output=tmp_path, layer="class_token")
    with pytest.raises(ValueError, match="images_sha256"):
        extract(model, sources.arrays(IMAGES[:5], LABELS[:5], name="noise"), output=tmp_path)
    keras.utils.set_random_seed(7)
    other = keras_vit.ViT_Ti16(
        weights=None, input_shape=(32, 32, 3), representation_size=20, classes=5
    )
    other.trainable = False  # what is frozen counts too
    extract(other, source, output=tmp_path / "frozen")
    other.get_layer("embedding").kernel.assign(0 * other.get_layer("embedding").kernel)
    with pytest.raises(ValueError, match="weights_sha256"):
        extract(other, source, output=tmp_path / "frozen")


def test_no_worker_reads_features_before_they_are_written(
    model, source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Workers meet once more behind the last row."""
    meetings = []
    monkeypatch.setattr(
        importlib.import_module("keras_vit.evaluate.features"),
        "_check_same_start",
        lambda start, devices: meetings.append((start, (tmp_path / "features.json").exists())),
    )
    extract(model, source, output=tmp_path)
    assert meetings == [(0, False), (0, True)]


def test_another_crop_or_size_gives_other_features(tmp_path: Path):
    """The model takes any size, and its weights do not tell with which one it was asked."""
    model = keras_vit.ViT_Ti16(weights=None, input_shape=(None, None, 3))
    noise = np.random.RandomState(3).randint(0, 256, (3, 40, 60, 3)).astype("uint8")
    source = sources.arrays(noise, np.arange(3), name="noise")
    extract(model, source, output=tmp_path, image_size=32)
    for other, there in (
        ({"image_size": 48}, r"'image_size': \[32, 32\]"),
        ({"image_size": (32, 48)}, r"'image_size': \[32, 32\]"),
        ({"image_size": 32, "eval_crop": "resize_shorter"}, "'eval_crop': 'resize'"),
    ):
        with pytest.raises(ValueError, match=f"contains other features: there {{{there}}}"):
            extract(model, source, output=tmp_path, **other)


class Killed(Exception):
    pass


@pytest.mark.parametrize(
    "after", [pytest.param(1, marks=pytest.mark.slow), 3, pytest.param(4, marks=pytest.mark.slow)]
)
def test_an_extraction_goes_on_behind_the_rows_that_were_saved(
    model, source, tmp_path: Path, monkeypatch, after: int
):
    """As after a kill: more was written than is said to count, and that is cut off."""
    whole = extract(model, source, output=tmp_path / "whole", batch_size=5)
    monkeypatch.setattr(feature_store, "_SECONDS_BETWEEN_SAVES", -1)  # after each batch
    save = feature_store.FeatureStore._save
    calls = []

    def save_and_stop(store):
        calls.append(store.rows)
        if len(calls) > after:
            for file in store._files:
                file.flush()
            raise Killed
        save(store)

    monkeypatch.setattr(feature_store.FeatureStore, "_save", save_and_stop)
    with pytest.raises(Killed):
        extract(model, source, output=tmp_path / "killed", batch_size=5)
    with pytest.raises(ValueError, match="not finished: rerun it"):
        load(tmp_path / "killed")
    monkeypatch.setattr(feature_store.FeatureStore, "_save", save)
    starts = []
    monkeypatch.setattr(
        "keras_vit.evaluate.features.outputs",
        lambda *args, **options: (starts.append(options["start"]), outputs(*args, **options))[1],
    )
    resumed = extract(model, source, output=tmp_path / "killed", batch_size=5)
    assert starts == [5 * after]
    assert (resumed.values == whole.values).all() and (resumed.labels == whole.labels).all()
    assert resumed.indices.tolist() == list(range(23))


def test_files_that_were_lost_are_noticed(model, source, tmp_path: Path, monkeypatch):
    monkeypatch.setattr(feature_store, "_SECONDS_BETWEEN_SAVES", -1)
    monkeypatch.setattr(feature_store.FeatureStore, "finish", lambda *_: None)
    with pytest.raises(ValueError, match="not finished"):
        extract(model, source, output=tmp_path)
    os.truncate(tmp_path / "features.npy", 300)
    with pytest.raises(ValueError, match="missing or was truncated"):
        extract(model, source, output=tmp_path)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("a", "b"):
        (tmp_path / "images" / name).mkdir(parents=True)
        for number in range(20):
            keras.utils.save_img(
                tmp_path / "images" / name / f"{number:02}.png", IMAGES[number], scale=False
            )
    return tmp_path / "images"


@pytest.mark.parametrize("layer", ["pre_logits", "encoder_norm"])
def test_a_batch_of_which_no_image_can_be_read_gives_no_row(model, folder: Path, layer: str):
    (folder / "a" / "00.png").write_bytes(b"no image")
    found = extract(model, sources.image_folder(folder), layer=layer, batch_size=1, progress=False)
    assert found.indices.tolist() == list(range(1, 40)) and len(found.values) == 39


def test_images_that_cannot_be_read_are_left_out_and_named(model, folder: Path, tmp_path: Path):
    for number in (0, 19):
        (folder / "a" / f"{number:02}.png").write_bytes(b"no image")
    source = sources.image_folder(folder)
    expected = [*range(1, 19), *range(20, 40)]
    for output in (None, tmp_path / "features"):
        features = extract(model, source, output=output, batch_size=6)
        assert features.indices.tolist() == expected and features.values.shape == (38, 20)
        assert (features.labels == (np.array(expected) >= 20)).all()
    lines = (tmp_path / "features" / "unreadable.txt").read_text().splitlines()
    assert [line.partition("\t")[0] for line in lines] == [
        str(folder / "a" / name) for name in ("00.png", "19.png")
    ]
    with pytest.raises(ValueError, match=r"00\.png cannot be read: "):
        extract(model, source, strict=True)


def test_repaired_images_are_unreadable_no_more(model, folder: Path, tmp_path: Path):
    """Twelve damaged files of forty are too many. After eleven are repaired, one is left out, and
    the list names only this one.
    """
    whole = {path: path.read_bytes() for path in sorted(folder.glob("a/*.png"))[:12]}
    for path in whole:
        path.write_bytes(b"no image")
    output = tmp_path / "features"
    with pytest.raises(ValueError, match="12 of the 40 images .* could not be read"):
        extract(model, sources.image_folder(folder), output=output, batch_size=40)
    record = output / "unreadable.txt"
    assert len(record.read_text().splitlines()) == 12
    for path in list(whole)[1:]:
        path.write_bytes(whole[path])
    found = extract(model, sources.image_folder(folder), output=output, batch_size=40)
    assert found.indices.tolist() == list(range(1, 40))
    assert [line.partition("\t")[0] for line in record.read_text().splitlines()] == [
        str(folder / "a" / "00.png")
    ]


def test_a_resumed_extraction_keeps_only_what_it_does_not_read_again(
    model, folder: Path, tmp_path: Path, monkeypatch
):
    for number in (1, 12, 17):
        (folder / "a" / f"{number:02}.png").write_bytes(b"no image")
    source = sources.image_folder(folder)
    monkeypatch.setattr(feature_store, "_SECONDS_BETWEEN_SAVES", -1)  # after each batch
    append = feature_store.FeatureStore.append

    def append_and_stop(store, *arrays):
        if store.next >= 10:
            raise Killed
        append(store, *arrays)

    with monkeypatch.context() as killed:
        killed.setattr(feature_store.FeatureStore, "append", append_and_stop)
        with pytest.raises(Killed):
            extract(model, source, output=tmp_path / "features", batch_size=5)
    record = tmp_path / "features" / "unreadable.txt"
    with record.open("a") as lines:  # has been read before the kill, and is whole again
        lines.write(f"{folder}/a/15.png\tthe disk was away\n")
    extract(model, source, output=tmp_path / "features", batch_size=5)
    names = [Path(line.partition("\t")[0]).name for line in record.read_text().splitlines()]
    assert sorted(names) == ["01.png", "12.png", "17.png"]  # batches are read in parallel


def test_a_layer_that_is_not_there_names_its_neighbours(model, source):
    with pytest.raises(ValueError, match="has no layer 'encoder_nrm'. Did you mean encoder_norm"):
        extract(model, source, layer="encoder_nrm")
    gap = keras_vit.ViT_Ti16(weights=None, input_shape=(32, 32, 3), classifier="gap")
    with pytest.raises(ValueError, match='has no class token. Use `layer="patch_mean"`'):
        extract(gap, source, layer="class_token")


SCRIPT = """
import sys, time, numpy as np, keras, keras_vit
from keras_vit.data import sources
from keras_vit.evaluate import feature_store, features
append = feature_store.FeatureStore.append

def append_and_wait(store, *arrays):
    append(store, *arrays)
    if store.rows == 400:
        store._save()
    if store.rows == 600:
        [file.flush() for file in store._files]
        print("half", flush=True)
        time.sleep(3600)

if sys.argv[2:] == ["wait"]:
    feature_store._SECONDS_BETWEEN_SAVES = float("inf")
    feature_store.FeatureStore.append = append_and_wait
keras.utils.set_random_seed(1)
model = keras_vit.ViT_Ti16(weights=None, input_shape=(32, 32, 3), classes=2)
images = np.random.default_rng(0).integers(0, 256, (1000, 8, 8, 3)).astype(np.uint8)
found = features.extract(model, sources.arrays(images, np.arange(1000) % 2), output=sys.argv[1], batch_size=4)
print("done", found.values.shape)
"""


@pytest.mark.slow
def test_a_killed_process_goes_on_and_ends_with_the_same_bits(tmp_path: Path):
    def start(*arguments: str) -> subprocess.Popen:
        folder, *rest = arguments
        return warm.Popen(
            [sys.executable, "-c", SCRIPT, str(tmp_path / folder), *rest],
            env={**os.environ, warm.UNOPTIMIZED: "1"},
            stdout=subprocess.PIPE,
            text=True,
        )

    assert "done (1000, 192)" in start("whole").communicate(timeout=HUNG_SECONDS)[0]
    process = start("killed", "wait")
    assert process.stdout.readline() == "half\n"
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    saved = json.loads((tmp_path / "killed" / "progress.json").read_text())
    assert saved["rows"] == 400 and not (tmp_path / "killed" / "features.json").exists()
    assert "done (1000, 192)" in start("killed").communicate(timeout=HUNG_SECONDS)[0]
    whole, resumed = (load(tmp_path / folder) for folder in ("whole", "killed"))
    assert (whole.values == resumed.values).all() and (whole.labels == resumed.labels).all()


def test_other_pixels_labels_or_precision_are_other_features(model, source, tmp_path: Path):
    extract(model, source, output=tmp_path)
    for other in (
        sources.arrays(IMAGES[::-1].copy(), LABELS, name="noise"),
        sources.arrays(IMAGES, LABELS[::-1].copy(), name="noise"),
        source.relabelled([2, 1, 0], list("xyz")),
    ):
        with pytest.raises(ValueError, match="images_sha256"):
            extract(model, other, output=tmp_path)
    keras.config.set_dtype_policy("mixed_bfloat16")
    try:
        half = keras_vit.ViT_Ti16(
            weights=None, input_shape=(32, 32, 3), representation_size=20, classes=5
        )
    finally:
        keras.config.set_dtype_policy("float32")
    half.set_weights(model.get_weights())
    with pytest.raises(ValueError, match="'precision': 'float32'"):
        extract(half, source, output=tmp_path)


def test_a_head_of_another_name_is_left_out_too():
    images = keras.Input((8, 8, 3))
    width = keras.layers.Dense(6, name="trunk")(keras.layers.Flatten()(images))
    head = keras.layers.Dense(4, name="fc")(width)
    for output in (head, keras.layers.Softmax()(head)):
        assert feature_model(keras.Model(images, output), "pre_logits").output_shape == (None, 6)
    trunk = keras_vit.ViT_Ti16(
        weights=None,
        include_top=False,
        pooling="token",
        representation_size=20,
        input_shape=(32, 32, 3),
    )
    assert feature_model(trunk, "pre_logits").output_shape == (None, 20)


def test_strict_holds_for_features_that_are_there_already(model, folder: Path, tmp_path: Path):
    (folder / "a" / "00.png").write_bytes(b"no image")
    source = sources.image_folder(folder)
    extract(model, source, output=tmp_path / "features")
    with pytest.raises(ValueError, match="1 images of .* could not be read, see .*unreadable.txt"):
        extract(model, source, output=tmp_path / "features", strict=True)
