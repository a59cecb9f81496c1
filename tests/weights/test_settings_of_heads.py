"""What the arrays of a checkpoint do not tell: what its head reads, the form of GELU, the pixels, the
grid of positions and the task. The file tells it, or the JSON files beside it.
"""

import json
from dataclasses import replace
from pathlib import Path

import keras
import numpy as np
import pytest
import safetensors.numpy
import torch_files

import keras_vit
from keras_vit.layers import TokenPooling
from keras_vit.variants import VARIANTS, ViTVariant
from keras_vit.weights import configs, dialects, source, witness
from keras_vit.weights.model_content import collect_facts, to_canonical

IMAGES = np.random.default_rng(1).uniform(-1, 1, (2, 32, 32, 3)).astype("float32")
READS = {"token": "token", "gap": "avg", "token_gap": "token_avg"}
HALF = (0.5, 0.5, 0.5)


def row_of(name: str, **fields) -> ViTVariant:
    tiny = {"patch_size": 8, "width": 16, "depth": 1, "num_heads": 2, "mlp_dim": 24}
    return replace(VARIANTS[name], **{**tiny, "image_size": 32, "projection": None, **fields})


def build(name: str, fields: dict | None = None, **options) -> keras.Model:
    given = {"classes": 3, "classifier_activation": None, **options}
    model = keras_vit.application(row_of(name, **(fields or {})))(weights=None, **given)
    generator = np.random.default_rng(0)
    for variable in model.weights:
        center = 1.0 if variable.path.endswith("gamma") else 0.0
        variable.assign(generator.normal(center, 0.3, variable.shape))
    return model


def load(name: str, weights, fields: dict | None = None, **options) -> keras.Model:
    given = {"classes": 3, "classifier_activation": None, **options}
    return keras_vit.application(row_of(name, **(fields or {})))(weights=weights, **given)


def canonical_of(model: keras.Model) -> tuple[dict, dict]:
    facts = collect_facts(model.layers, model.inputs[0])
    return to_canonical(model.layers, facts), facts


def write_foreign(folder: Path, model: keras.Model, dialect: str, config=None, **more) -> Path:
    """A folder as another package writes it: arrays without our metadata, and JSON files."""
    arrays, facts = canonical_of(model)
    rotary = model.name.startswith("dinov3")
    named = dialects.from_canonical(arrays, dialect, grid=facts.get("grid"), rotary=rotary)
    folder.mkdir()
    named = {name: np.ascontiguousarray(array) for name, array in named.items()}
    safetensors.numpy.save_file(named, folder / "model.safetensors", metadata={"format": "pt"})
    for file, content in {"config": config, **more}.items():
        if content is not None:
            (folder / f"{file}.json").write_text(json.dumps(content))
    return folder


def timm_config(**fields) -> dict:
    pretrained = {"input_size": [3, 32, 32], "mean": [0.485, 0.456, 0.406], "std": [0.229] * 3}
    return {"architecture": "vit", "num_classes": 3, "pretrained_cfg": pretrained, **fields}


def transformers_config(**fields) -> dict:
    return {
        "hidden_act": "gelu",
        "num_attention_heads": 2,
        "layer_norm_eps": 1e-6,
        "image_size": 32,
        "patch_size": 8,
        **fields,
    }


def assert_equal(found: keras.Model, expected: keras.Model) -> None:
    np.testing.assert_array_equal(
        found.predict(IMAGES, verbose=0), expected.predict(IMAGES, verbose=0)
    )


@pytest.mark.parametrize("file", ["model.npz", "model.safetensors", "model.weights.h5"])
@pytest.mark.parametrize("classifier", ["token", "gap", "token_gap"])
@pytest.mark.parametrize(
    "name", ["ViT_B16", "DeiT_B16", "CLIP_B32", "DINOv2_B14", "MAE_B16", "DINOv3_S16"]
)
def test_a_head_reads_after_loading_what_it_was_trained_on(name, classifier, file, tmp_path):
    model = build(name, classifier=classifier)
    path = tmp_path / file
    if file.endswith(".h5"):
        model.save_weights(path)
    else:
        keras_vit.save_checkpoint(model, path)
    again = load(name, path)
    pooling = [layer.mode for layer in again.layers if isinstance(layer, TokenPooling)]
    assert pooling == [READS[classifier]]
    assert_equal(again, model)
    if name != "DINOv3_S16":  # its rotation is not resized
        arrays, _ = canonical_of(model)
        variant = source.adapt(row_of(name), source.load(source.find(name, path)))
        logits = witness.forward(arrays, IMAGES, variant, classifier=classifier)["logits"]
        np.testing.assert_allclose(again.predict(IMAGES, verbose=0), logits, atol=2e-4)


def test_a_checkpoint_without_a_head_has_no_classifier(tmp_path):
    model = keras_vit.application(row_of("DeiT_B16"))(
        weights=None, include_top=False, pooling="avg", input_shape=(32, 32, 3)
    )
    assert "classifier" not in collect_facts(model.layers, model.inputs[0])
    model.save_weights(path := tmp_path / "model.weights.h5")
    with pytest.raises(ValueError, match="head"):
        load("DeiT_B16", path)


MAE_OF_VIT = {"norm_after_pooling": False, "classifier": "token"}


@pytest.mark.parametrize(
    ("dialect", "config"),
    [
        ("timm", timm_config(global_pool="token")),
        ("timm", timm_config()),
        ("timm", None),
        ("huggingface", transformers_config(architectures=["ViTForImageClassification"])),
        ("huggingface", transformers_config()),
    ],
)
def test_an_mae_that_was_fine_tuned_on_its_class_token_reads_it(dialect, config, tmp_path):
    model = build("MAE_B16", MAE_OF_VIT)
    pixels = {"image_mean": [0.485, 0.456, 0.406], "image_std": [0.229, 0.224, 0.225]}
    more = {} if dialect == "timm" else {"preprocessor_config": pixels}
    if config is not None and dialect == "timm":
        config["pretrained_cfg"] |= {"mean": pixels["image_mean"], "std": pixels["image_std"]}
    folder = write_foreign(tmp_path / "mae", model, dialect, config, **more)
    assert_equal(load("MAE_B16", folder), model)


@pytest.mark.parametrize(
    ("config", "classifier"),
    [
        (timm_config(global_pool="avg"), "gap"),
        (timm_config(global_pool="token"), "token"),
        (None, "gap"),  # the default of timm's class
    ],
)
def test_a_classifier_of_timm_on_dinov3_reads_the_mean_unless_it_is_told(
    config, classifier, tmp_path
):
    model = build("DINOv3_S16", classifier=classifier)
    folder = write_foreign(tmp_path / "dinov3", model, "timm", config)
    again = load("DINOv3_S16", folder)
    assert again.get_layer("pooled").mode == READS[classifier]
    for layer in again.layers:
        assert layer.get_weights() or layer.name != "predictions"


def test_a_siglip_that_was_fine_tuned_with_transformers_reads_the_mean(tmp_path):
    model = build("SigLIP_B16", classifier="gap")
    keras_vit.save_checkpoint(model, tmp_path / "siglip")
    assert_equal(load("SigLIP_B16", tmp_path / "siglip"), model)


@pytest.mark.parametrize("pooling", ["avgmax", "max", "", 3])
def test_a_pooling_of_timm_that_no_model_has_is_refused(pooling, tmp_path):
    config = timm_config(global_pool=pooling)
    folder = write_foreign(tmp_path / "vit", build("ViT_B16"), "timm", config)
    with pytest.raises(ValueError, match="global_pool is .* implemented: token, avg, map"):
        load("ViT_B16", folder)
    (folder / "config.json").write_text(json.dumps({**config, "num_classes": 0}))
    load("ViT_B16", folder, include_top=False)


@pytest.mark.parametrize("name", ["CLIP_B32", "DINO_S16", "DeiT_B16"])
def test_pixels_of_a_half_come_back_from_the_weights_of_keras(name, tmp_path):
    model = build(name, {"pixel_mean": HALF, "pixel_std": HALF})
    model.save_weights(path := tmp_path / "model.weights.h5")
    assert_equal(load(name, path), model)


@pytest.mark.parametrize("file", ["preprocessor_config", "processor_config"])
def test_pixels_are_in_either_file_of_a_processor(file, tmp_path):
    pixels = {
        "image_mean": [0.1, 0.2, 0.3],
        "image_std": [0.5, 0.6, 0.7],
        "size": {"shortest_edge": 40},
        "do_center_crop": True,
        "crop_size": 32,
    }
    content = pixels if file == "preprocessor_config" else {"image_processor": pixels}
    fields = {"pixel_mean": (0.1, 0.2, 0.3), "pixel_std": (0.5, 0.6, 0.7)}
    model = build("DeiT_B16", fields)
    config = transformers_config(architectures=["DeiTForImageClassification"])
    folder = write_foreign(tmp_path / "deit", model, "huggingface", config, **{file: content})
    np.testing.assert_allclose(
        load("DeiT_B16", folder).predict(IMAGES, verbose=0),
        model.predict(IMAGES, verbose=0),
        atol=1e-5,
    )
    assert configs.read_crop(folder) == "central:0.8"
    assert configs.has_processor(folder / "model.safetensors") == (file == "processor_config")


@pytest.mark.parametrize("mean", [0.5, [0.5]])
def test_one_mean_is_that_of_all_colors(mean, tmp_path):
    path = tmp_path / "preprocessor_config.json"
    path.write_text(json.dumps({"image_mean": mean, "image_std": mean}))
    found = configs.read_beside(tmp_path / "model.safetensors")
    assert found == {"pixel_mean": HALF, "pixel_std": HALF}


def test_a_json_file_may_begin_with_a_byte_order_mark(tmp_path):
    text = json.dumps(transformers_config())
    (tmp_path / "config.json").write_text(text, encoding="utf-8-sig")
    assert configs.read_beside(tmp_path / "model.safetensors")["num_heads"] == 2


def test_the_image_size_tells_the_grid_of_a_table_that_could_be_square(tmp_path):
    model = build("ViT_B16", input_shape=(128, 32, 3), gelu="exact", classifier="token")
    config = timm_config(global_pool="token")
    config["pretrained_cfg"] = {"input_size": [3, 128, 32]}
    folder = write_foreign(tmp_path / "vit", model, "timm", config)
    tall = np.random.default_rng(2).uniform(-1, 1, (2, 128, 32, 3)).astype("float32")
    expected = model.predict(tall, verbose=0)
    for options in ({}, {"input_shape": (128, 32, 3)}, {"input_shape": (None, None, 3)}):
        again = load("ViT_B16", folder, **options)
        np.testing.assert_allclose(again.predict(tall, verbose=0), expected, atol=1e-5)


@pytest.mark.parametrize("file", ["model.npz", "model.safetensors", "model.weights.h5", "folder"])
def test_a_model_has_the_image_size_of_its_positions(file, tmp_path):
    model = build("ViT_B16", input_shape=(48, 64, 3))
    if file == "folder":  # without JSON files, a table of 64 positions is that of a square
        model = build("ViT_B16", input_shape=(64, 64, 3))
        path = write_foreign(tmp_path / file, model, "timm")
    elif file.endswith(".h5"):
        model.save_weights(path := tmp_path / file)
    else:
        keras_vit.save_checkpoint(model, path := tmp_path / file)
    assert load("ViT_B16", path).input_shape == model.input_shape


@pytest.mark.parametrize(
    ("fields", "classes", "refused", "advice"),
    [
        ({"problem_type": "regression"}, 3, "softmax", "classifier_activation=None"),
        ({"problem_type": "regression"}, 3, "sigmoid", "classifier_activation=None"),
        ({}, 1, "softmax", "classifier_activation=None"),
        (
            {"problem_type": "multi_label_classification"},
            3,
            "softmax",
            'classifier_activation="sigmoid"',
        ),
    ],
)
def test_probabilities_of_classes_are_not_made_of_other_outputs(
    fields, classes, refused, advice, tmp_path
):
    model = build("ViT_B16", classes=classes)
    config = transformers_config(architectures=["ViTForImageClassification"], **fields)
    folder = write_foreign(tmp_path / "vit", model, "huggingface", config)
    with pytest.raises(ValueError, match=advice):
        load("ViT_B16", folder, classes=classes, classifier_activation=refused)
    load("ViT_B16", folder, classes=classes)
    if refused == "softmax" and "multi" in fields.get("problem_type", ""):
        scores = load("ViT_B16", folder, classifier_activation="sigmoid").predict(IMAGES, verbose=0)
        logits = load("ViT_B16", folder).predict(IMAGES, verbose=0)
        np.testing.assert_allclose(scores, 1 / (1 + np.exp(-logits)), atol=1e-6)


def test_one_output_may_be_a_probability(tmp_path):
    model = build("ViT_B16", classes=1)
    folder = write_foreign(tmp_path / "vit", model, "timm", timm_config(num_classes=1))
    scores = load("ViT_B16", folder, classes=1, classifier_activation="sigmoid")
    assert scores.output_shape == (None, 1)


def test_one_class_of_many_may_be_asked_of_a_single_label(tmp_path):
    model = build("ViT_B16")
    fields = {"architectures": ["ViTForImageClassification"]}
    config = transformers_config(problem_type="single_label_classification", **fields)
    folder = write_foreign(tmp_path / "vit", model, "huggingface", config)
    assert load("ViT_B16", folder, classifier_activation="softmax").output_shape == (None, 3)


@pytest.mark.parametrize(
    ("file", "content", "gelu"),
    [
        ("config", timm_config(model_args={"act_layer": "gelu_tanh"}), "tanh"),
        ("config", timm_config(model_args={"act_layer": "quick_gelu"}), "quick"),
        ("config", {"model_type": "clip", "vision_config": {"num_hidden_layers": 2}}, "quick"),
        ("config", {"vision_config": {"model_type": "siglip_vision_model"}}, "tanh"),
        ("config", {"vision_config": {"model_type": "clip_vision_model", "hidden_act": "gelu"}}, "exact"),
        (
            "open_clip_config",
            {"model_cfg": {"vision_cfg": {"width": 64, "act_kwargs": {"approximate": "tanh"}}}},
            "tanh",
        ),
        ("open_clip_config", {"model_cfg": {"vision_cfg": {"width": 64}}}, "exact"),
    ],
)  # fmt: skip
def test_the_form_of_gelu_is_that_of_the_config_or_of_its_class(file, content, gelu, tmp_path):
    (tmp_path / f"{file}.json").write_text(json.dumps(content))
    assert configs.read_beside(tmp_path / "model.safetensors")["gelu"] == gelu


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("config", timm_config(model_args={"act_layer": "silu"}), "act_layer is 'silu'"),
        ("config", transformers_config(pooler_act="gelu"), "pooler_act is 'gelu'"),
        (
            "open_clip_config",
            {"model_cfg": {"vision_cfg": {"width": 64, "pool_type": "avg"}}},
            "pool_type is 'avg'. Only tok",
        ),
        (
            "open_clip_config",
            {"model_cfg": {"vision_cfg": {"width": 64, "attentional_pool": True}}},
            "pool_type is 'attentional'. Only tok",
        ),
    ],
)
def test_a_computation_that_no_model_has_is_refused(file, content, message, tmp_path):
    (tmp_path / f"{file}.json").write_text(json.dumps(content))
    with pytest.raises(ValueError, match=message):
        configs.read_beside(tmp_path / "model.safetensors")


@pytest.mark.parametrize("name", ["dinov2-base", "vit-mae-base", "dino-vitb16"])
def test_a_fine_tuned_folder_may_have_the_name_of_a_published_one(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    model = build("DINOv2_B14", classifier="token_gap")
    keras_vit.save_checkpoint(model, name)
    assert_equal(load("DINOv2_B14", name), model)


def test_a_path_may_begin_with_the_home_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    model = build("ViT_B16")
    keras_vit.save_checkpoint(model, tmp_path / "vit.npz")
    assert_equal(load("ViT_B16", "~/vit.npz"), model)


def save_state_dict(path: Path, model: keras.Model, prefix: str, more: dict) -> None:
    arrays, facts = canonical_of(model)
    named = dialects.from_canonical(arrays, "timm", grid=facts.get("grid"))
    torch_files.save(path, {f"{prefix}{name}": x for name, x in named.items()} | more)


def test_counters_of_torch_are_no_weights(tmp_path):
    """As `torch.optim.swa_utils.AveragedModel` and batch normalization keep them."""
    model = build("ViT_B16", gelu="exact")
    counters = {"n_averaged": np.int64([5]), "module.bn.num_batches_tracked": np.int64([5])}
    save_state_dict(tmp_path / "vit.pth", model, "module.", counters)
    assert_equal(load("ViT_B16", tmp_path / "vit.pth"), model)
    statistics = {"head.0.running_mean": np.ones(16, "float32")}
    save_state_dict(tmp_path / "vit.pth", model, "", statistics)
    with pytest.raises(ValueError, match="head.0.running_mean"):
        load("ViT_B16", tmp_path / "vit.pth")


@pytest.mark.parametrize(("dialect", "head"), [("timm", "head."), ("huggingface", "classifier.")])
def test_a_head_beside_a_backbone_is_read_and_a_projector_is_not(dialect, head, tmp_path):
    """A training script calls both `head`, whatever names the backbone has."""
    model = build("ViT_B16", gelu="exact")
    arrays, facts = canonical_of(model)
    named = dialects.from_canonical(arrays, dialect, grid=facts.get("grid"))
    trunk = {f"backbone.{name}": x for name, x in named.items() if not name.startswith(head)}
    classifier = {f"head.{leaf}": named[f"{head}{leaf}"] for leaf in ("weight", "bias")}
    torch_files.save(tmp_path / "vit.pth", trunk | classifier)
    assert_equal(load("ViT_B16", tmp_path / "vit.pth", gelu="exact"), model)
    load("ViT_B16", tmp_path / "vit.pth", include_top=False)
    for name in ("head.mlp.0.weight", "head.last_layer.weight_g", "head.2.weight"):
        torch_files.save(tmp_path / "dino.pth", trunk | {name: np.ones((4, 16), "float32")})
        load("ViT_B16", tmp_path / "dino.pth", include_top=False)
        with pytest.raises(ValueError, match="no head that is one dense layer"):
            load("ViT_B16", tmp_path / "dino.pth")


def test_a_head_on_the_classes_of_its_backbone_is_refused(tmp_path):
    model = build("ViT_B16", gelu="exact")
    head = {"head.weight": np.ones((2, 3), "float32"), "head.bias": np.ones(2, "float32")}
    save_state_dict(tmp_path / "vit.pth", model, "backbone.", head)
    with pytest.raises(ValueError, match="head.bias .from backbone.head.bias, head.bias."):
        load("ViT_B16", tmp_path / "vit.pth")
