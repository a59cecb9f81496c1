"""`verify` on small files of every layout, sound and unsound."""

import hashlib
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from synthetic_checkpoint import checkpoint

import keras_vit
from keras_vit import applications, verify
from keras_vit.variants import RESNET_VARIANTS, VARIANTS, VIT_VARIANTS, ResNetVariant, ViTVariant
from keras_vit.weights import catalog, dialects, files, layouts

pytestmark = pytest.mark.usefixtures("shallow")

TI16 = replace(VIT_VARIANTS["ViT_Ti16"], depth=2)  # as `shallow` has it
SMALL = {"image_size": 32, "classes": 7}


Report = tuple[bool, list[str]]


def report(file: str | Path, model: str | None = None) -> Report:
    lines: list[str] = []
    return verify.verify(str(file), model, lines.append), lines


def layers_of(lines: list[str]) -> dict[str, str]:
    """Lines of the table by name of the layer."""
    start = next(
        number for number, line in enumerate(lines) if line.split()[:2] == ["layer", "shape"]
    )
    return {line.split()[0]: line for line in lines[start + 1 : lines.index("", start)]}


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("sound") / "ti16.npz"
    np.savez(path, **layouts.to_published(checkpoint(TI16, **SMALL)))
    return path


@pytest.fixture(scope="module")
def sound_report(sound: Path) -> Report:
    return report(sound, "ViT_Ti16")


def test_a_sound_file_is_verified_in_all_its_layers(sound_report: Report):
    verdict, lines = sound_report
    assert verdict
    assert lines[-1].startswith("VERIFIED: the Keras model matches the NumPy pass in all 6 layers")
    blocks = [f"encoderblock_{index}" for index in range(2)]
    assert list(layers_of(lines)) == [
        "embedding",
        "posembed_input",
        *blocks,
        "encoder_norm",
        "logits",
    ]


def test_the_report_says_what_the_file_is(sound: Path, sound_report: Report):
    text = "\n".join(sound_report[1])
    parameters = 5_717_416 - 10 * (12 * 192**2 + 13 * 192) - 192 * (196 - 4) - 193 * (1000 - 7)
    assert f"{200 - 10 * 16} with {parameters:,} parameters" in text
    assert f"{sound.stat().st_size:,} bytes" in text
    assert hashlib.sha256(sound.read_bytes()).hexdigest() in text
    assert "integrity   each array equals its checksum in the file" in text
    assert "Google, modules counted as before linen" in text
    assert "ViT_Ti16, as named; the shapes match" in text
    assert "32 x 32 pixels, 2 x 2 patches, 5 positions" in text
    assert "7 classes; reads the class token" in text
    assert "GELU in its tanh form, layer norm epsilon 1e-06" in text


def write_optimizer(folder: Path) -> Path:
    arrays = layouts.to_published(checkpoint(TI16, **SMALL))
    slots = {
        f"opt/state/param_states/{name}/grad_ema": x for name, x in arrays.items() if "bias" in name
    }
    np.savez(
        folder / "file.npz", **{f"opt/target/{name}": x for name, x in arrays.items()}, **slots
    )
    return folder / "file.npz"


def write_gap(folder: Path) -> Path:
    np.savez(folder / "file.npz", **checkpoint(TI16, classifier="gap", **SMALL))
    return folder / "file.npz"


def write_map(folder: Path) -> Path:
    arrays = checkpoint(TI16, classifier="map", **SMALL)
    np.savez(folder / "file.npz", **{f"params/{name}": x for name, x in arrays.items()})
    return folder / "file.npz"


def write_zero_head(folder: Path) -> Path:
    arrays = checkpoint(TI16, representation_size=192, **SMALL)
    np.savez(
        folder / "file.npz",
        **arrays | {name: np.zeros_like(arrays[name]) for name in ("head/kernel", "head/bias")},
    )
    return folder / "file.npz"


def write_no_head(folder: Path) -> Path:
    np.savez(folder / "file.npz", **checkpoint(TI16, image_size=32, classes=None))
    return folder / "file.npz"


def write_rectangle(folder: Path) -> Path:
    files.write_npz(
        folder / "file.npz", checkpoint(TI16, image_size=(32, 48), classes=7), {"grid": (2, 3)}
    )
    return folder / "file.npz"


def write_timm(folder: Path) -> Path:
    path = folder / "file.safetensors"
    files.write_safetensors(path, dialects.from_canonical(checkpoint(TI16, **SMALL), "timm"))
    return path


def write_hugging_face(folder: Path) -> Path:
    arrays = dialects.from_canonical(checkpoint(TI16, **SMALL), "huggingface")
    files.write_safetensors(folder / "model.safetensors", arrays)
    sizes = {"image_size": 32, "patch_size": 16, "num_attention_heads": 3}
    (folder / "config.json").write_text(
        json.dumps({"hidden_act": "gelu", "layer_norm_eps": 1e-12, **sizes})
    )
    return folder


def write_keras(folder: Path) -> Path:
    model = keras_vit.ViT_Ti16(weights=None, input_shape=(32, 32, 3), classes=7)
    model.get_layer("predictions").kernel.assign(np.eye(192, 7))
    model.save_weights(folder / "file.weights.h5")
    return folder / "file.weights.h5"


def write_hybrid(folder: Path) -> Path:
    np.savez(
        folder / "file.npz",
        **layouts.to_published(checkpoint(VIT_VARIANTS["R_ViT_Ti16"], image_size=64, classes=7)),
    )
    return folder / "file.npz"


SLOT_NUMBERS = sum(x.size for name, x in checkpoint(TI16, **SMALL).items() if "bias" in name)


@pytest.mark.parametrize(
    ("write", "said", "layer"),
    [
        (write_optimizer, f"and {SLOT_NUMBERS:,} other numbers", "logits"),
        (write_gap, "reads the mean of the patches", "logits"),
        (write_map, "reads attention pooling", "map_head"),
        (write_zero_head, "not compared: the Keras model has no head", "pre_logits"),
        (write_no_head, "none; reads the class token", "encoder_norm"),
        (write_rectangle, "32 x 48 pixels, 2 x 3 patches, 7 positions", "logits"),
        (write_timm, "GELU in its exact form, layer norm epsilon 1e-06", "logits"),
        (write_hugging_face, "GELU in its exact form, layer norm epsilon 1e-12", "logits"),
        (write_keras, "Keras weights", "logits"),
        (write_hybrid, "R_ViT_Ti16, identified by the shapes", "root"),
    ],
)
@pytest.mark.sampled(5)
def test_files_of_all_kinds_are_verified(
    write: Callable[[Path], Path], said: str, layer: str, tmp_path: Path
):
    verdict, lines = report(write(tmp_path))
    assert verdict, "\n".join(lines)
    assert said in "\n".join(lines)
    assert float(layers_of(lines)[layer].split()[-2]) < 1e-4  # the relative error


@pytest.fixture
def small_axial(monkeypatch: pytest.MonkeyPatch) -> dict[str, ViTVariant | ResNetVariant]:
    """The axial rows in little, as if the table of models had them so."""
    rows = {
        "AxialViT_B32": replace(
            VIT_VARIANTS["AxialViT_B32"], width=48, depth=2, num_heads=3, mlp_dim=64
        ),
        "AxialResNet50": replace(RESNET_VARIANTS["AxialResNet50"], units=(1, 2)),
    }
    for name, row in rows.items():
        for table in (VIT_VARIANTS if name in VIT_VARIANTS else RESNET_VARIANTS, VARIANTS):
            monkeypatch.setitem(table, name, row)
        monkeypatch.setattr(applications, name, applications.application(row))
    return rows


def built_as(path: Path, model: str, monkeypatch: pytest.MonkeyPatch) -> dict:
    """The options with which `verify` builds the Keras model of a file."""
    built: list[dict] = []

    def build(**options):
        built.append(options)
        raise InterruptedError

    monkeypatch.setattr(verify, "_run_numpy", lambda *_: {"logits": np.ones(7)})
    monkeypatch.setattr(applications, model, build)
    with pytest.raises(InterruptedError):
        report(path, model)
    return built[0]


@pytest.mark.parametrize(
    ("write", "expected"),
    [
        (write_gap, {"include_top": True, "classes": 7, "classifier": "gap"}),
        (
            write_zero_head,
            {"include_top": False, "pooling": "token", "representation_size": 192},
        ),
        (write_rectangle, {"input_shape": (32, 48, 3), "classes": 7}),
    ],
)
def test_the_keras_model_is_built_as_the_file_says(
    write: Callable[[Path], Path], expected: dict, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    path = write(tmp_path)
    options = {"include_top": True, **built_as(path, "ViT_Ti16", monkeypatch)}
    assert options["weights"] == str(path) and options["classifier_activation"] is None
    assert {name: options[name] for name in expected} == expected


def test_the_tables_of_an_axial_resnet_tell_height_from_width(
    small_axial, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    arrays = checkpoint(small_axial["AxialResNet50"], image_size=(40, 52), classes=7)
    files.write_npz(tmp_path / "file.npz", arrays, {})
    built = built_as(tmp_path / "file.npz", "AxialResNet50", monkeypatch)
    assert built["input_shape"] == (40, 52, 3)


@pytest.mark.parametrize(("error", "is_sound"), [(0.009, True), (0.011, False)])
def test_no_amplification_of_rounding_excuses_an_error_of_a_hundredth(
    error: float, is_sound: bool, sound: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(verify, "_run_numpy", lambda *_: {"logits": np.ones(7)})
    monkeypatch.setattr(verify, "_run_keras", lambda *_: {"logits": np.full(7, 1 + error)})
    monkeypatch.setattr(verify, "_measure_rounding_noise", lambda *_: {"logits": 1.0})
    assert report(sound)[0] is is_sound


@pytest.mark.parametrize(
    ("name", "size", "layers"),
    [
        (
            "AxialViT_B32",
            (64, 96),
            {"embedding", "posembed_input", "encoderblock_0", "encoderblock_1", "encoder_norm"},
        ),
        ("AxialResNet50", (40, 52), {"root", "block1", "block2", "pre_logits"}),
    ],
)
@pytest.mark.parametrize("kind", ["npz", "weights.h5"])
@pytest.mark.sampled(1)
def test_axial_models_are_verified(name, size, layers, kind, small_axial, tmp_path: Path):
    """A file of Keras's tells no size: the tables of a ResNet do, those of a ViT if they are of a
    square.
    """
    size = (64, 64) if (name, kind) == ("AxialViT_B32", "weights.h5") else size
    path, npz = tmp_path / f"file.{kind}", tmp_path / "file.npz"
    arrays = checkpoint(small_axial[name], image_size=size, classes=7)
    grid = {"grid": (size[0] // 32, size[1] // 32)} if name in VIT_VARIANTS else {}
    files.write_npz(npz, arrays, {"image_size": size, **grid})
    if kind == "weights.h5":
        getattr(applications, name)(weights=npz, classes=7).save_weights(path)
    verdict, lines = report(path)
    assert verdict, "\n".join(lines)
    assert layers_of(lines).keys() == {*layers, "logits"}
    assert f"{name}, identified by the shapes" in "\n".join(lines)
    assert ("axial attention under keras_vit's names" in "\n".join(lines)) is (kind == "npz")


def test_a_swap_of_rows_and_columns_is_found(
    small_axial, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    files.write_npz(
        tmp_path / "file.npz", checkpoint(small_axial["AxialViT_B32"], image_size=64, classes=7)
    )
    right = applications.AxialViT_B32

    def wrong(**options):
        model = right(**options)
        block = model.get_layer("encoderblock_1")
        row, column = block.row.get_weights(), block.column.get_weights()
        block.row.set_weights(column)
        block.column.set_weights(row)
        return model

    monkeypatch.setattr(applications, "AxialViT_B32", wrong)
    verdict, lines = report(tmp_path / "file.npz")
    assert not verdict
    assert lines[-1] == "FAILED: first layer that differs: encoderblock_1."


@pytest.mark.slow
@pytest.mark.parametrize("name", ["BiT_R50x1", "ResNet50x1", "R26_ViT_S32", "AxialResNet50"])
def test_residual_networks_are_verified(name: str, tmp_path: Path):
    row = (VIT_VARIANTS | RESNET_VARIANTS)[name]
    options = {"image_size": 64} if name in VIT_VARIANTS or row.axial else {}
    arrays = layouts.to_published(checkpoint(row, classes=7, **options))
    files.write_npz(tmp_path / "file.npz", arrays, {"image_size": (64, 64)})
    verdict, lines = report(tmp_path / "file.npz", name)
    assert verdict, "\n".join(lines)
    assert {"root", "block1", "block4", "logits"} <= layers_of(lines).keys()


@pytest.mark.parametrize(
    ("layer", "variable"), [("embedding", "kernel"), ("encoderblock_1", "mlp/dense_1/bias")]
)
def test_a_wrong_number_fails_and_names_its_layer(
    layer: str, variable: str, sound: Path, monkeypatch: pytest.MonkeyPatch
):
    right = applications.ViT_Ti16

    def wrong(**options):
        model = right(**options)
        found = next(
            v for v in model.get_layer(layer).weights if v.path.endswith(f"{layer}/{variable}")
        )
        found.assign(found + 0.01)
        return model

    monkeypatch.setattr(applications, "ViT_Ti16", wrong)
    verdict, lines = report(sound)
    assert not verdict
    assert lines[-1] == f"FAILED: first layer that differs: {layer}."
    assert layers_of(lines)[layer].endswith("differs")


@pytest.mark.parametrize("wrong", [{"gelu": "exact"}, {"norm_epsilon": 1e-5}])
def test_wrong_numerics_fail(wrong: dict, sound: Path, monkeypatch: pytest.MonkeyPatch):
    right = applications.ViT_Ti16
    monkeypatch.setattr(applications, "ViT_Ti16", lambda **options: right(**options, **wrong))
    verdict, lines = report(sound)
    assert not verdict
    assert lines[-1] == "FAILED: first layer that differs: encoderblock_0."


def test_a_network_that_amplifies_rounding_is_not_blamed_for_it(
    sound: Path, monkeypatch: pytest.MonkeyPatch
):
    # As if float32 had been expected to do better than it can.
    monkeypatch.setattr(verify, "TOLERANCE", 1e-8)
    verdict, lines = report(sound)
    assert verdict
    assert (
        "  Tolerances above 1.0e-08 are 10 times the effect of changing the last bit of every weight."
        in lines
    )


def test_another_model_than_expected_fails(sound: Path):
    verdict, lines = report(sound, "ViT_S16")
    assert not verdict
    assert lines[-1] == "FAILED: the file contains ViT_Ti16, not ViT_S16."


@pytest.fixture
def _without_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where only the report about the file matters."""
    monkeypatch.setattr(verify, "_run_numpy", lambda *_: {"logits": np.ones(7)})
    monkeypatch.setattr(verify, "_run_keras", lambda *_: {"logits": np.ones(7)})


@pytest.mark.usefixtures("_without_passes")
def test_a_file_under_a_published_name_must_be_that_file(sound: Path, tmp_path: Path):
    path = tmp_path / "sam" / "ViT-B_16.npz"
    path.parent.mkdir()
    path.write_bytes(sound.read_bytes())
    verdict, lines = report(path)
    assert not verdict
    assert (
        "the size differs from that of sam/ViT-B_16.npz; sam/ViT-B_16.npz is a file of ViT_B16"
        in lines[-1]
    )


@pytest.mark.usefixtures("_without_passes")
def test_a_file_must_have_the_hash_that_was_pinned(sound: Path, tmp_path: Path):
    path = tmp_path / "file.npz"
    path.write_bytes(sound.read_bytes())
    pin = tmp_path / "file.npz.sha256"
    pin.write_text(f"{'0' * 64}  file.npz\n")
    verdict, lines = report(path)
    assert not verdict
    assert lines[-1].startswith(
        "FAILED: the sha256 differs from the one pinned on first use; otherwise the Keras model matches"
    )


@pytest.mark.usefixtures("_without_passes")
def test_a_pinned_hash_may_be_in_capitals(sound: Path, tmp_path: Path):
    """certutil and PowerShell's Get-FileHash print capitals."""
    path = tmp_path / "file.npz"
    path.write_bytes(sound.read_bytes())
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    (tmp_path / "file.npz.sha256").write_text(f"{digest.upper()}  file.npz\n")
    verdict, lines = report(path)
    assert verdict, "\n".join(lines)
    assert "equal to the one pinned on first use" in "\n".join(lines)


def test_a_tag_is_found_in_the_offline_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    row = catalog.lookup("ViT_Ti16", "imagenet")
    path = tmp_path / row.file
    path.parent.mkdir()
    np.savez(path, **layouts.to_published(checkpoint(TI16)))
    monkeypatch.setenv("KERAS_VIT_WEIGHTS", str(tmp_path))
    verdict, lines = report("imagenet", "ViT_Ti16")
    assert verdict
    assert lines[0] == str(path)


def test_a_missing_array_is_named(tmp_path: Path):
    arrays = checkpoint(TI16, **SMALL)
    del arrays["Transformer/encoderblock_1/LayerNorm_0/scale"]
    np.savez(tmp_path / "file.npz", **arrays)
    with pytest.raises(
        ValueError, match=r"Missing \(1\): Transformer/encoderblock_1/LayerNorm_0/scale"
    ):
        report(tmp_path / "file.npz")


def test_a_damaged_file_is_refused_by_the_reader(sound: Path, tmp_path: Path):
    (tmp_path / "file.npz").write_bytes(sound.read_bytes()[:-100])
    with pytest.raises(ValueError, match="truncated"):
        report(tmp_path / "file.npz")


def test_what_is_no_file_needs_a_model_to_be_a_tag():
    with pytest.raises(ValueError, match=r"no file 'sam'.*--model=ViT_B16"):
        report("sam")


def test_an_unknown_model_names_its_neighbours(sound: Path):
    with pytest.raises(ValueError, match="Did you mean ViT_Ti16"):
        report(sound, "vit_ti16")


def test_positions_that_no_published_file_has_are_refused(tmp_path: Path):
    model = keras_vit.ViT_Ti16(
        weights=None,
        input_shape=(32, 32, 3),
        classes=7,
        head_bias=1.0,
        position_embedding="learned_2d",
    )
    keras_vit.save_checkpoint(model, tmp_path / "file.npz")
    with pytest.raises(
        ValueError, match="one learned position table, at the input.*column_embedding"
    ):
        report(tmp_path / "file.npz")


@pytest.mark.parametrize(
    ("values", "expected", "error"),
    [
        ([1.0, -7.0], [1.0, -8.0], 0.125),
        ([[3.0], [3.0]], [3.0, 3.0], 0.0),
        ([0.0], [0.0], 0.0),
        ([1e-9], [0.0], np.inf),
        ([np.nan, 1.0], [1.0, 1.0], np.inf),
        ([1.0], [1.0, 1.0], np.inf),
    ],
)
def test_relative_error(values: list, expected: list, error: float):
    assert verify.relative_error(np.array(values), np.array(expected)) == error


def test_the_example_image_is_always_the_same_and_has_no_symmetry():
    image = verify.example_image(32, 32)
    np.testing.assert_array_equal(image, verify.example_image(32, 32))
    assert image.shape == (1, 32, 32, 3) and image.dtype == np.float32
    assert 0.9 < np.abs(image).max() <= 1.0
    for other in (image[:, ::-1], image[:, :, ::-1], image.swapaxes(1, 2), image[..., ::-1]):
        assert np.abs(image - other).mean() > 0.1
