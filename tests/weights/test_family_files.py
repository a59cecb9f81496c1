"""Files of other families: recorded outputs of their packages, Meta's names, and what is refused.

The models were recorded by `golden/families/make.py`. `test_families.py` runs the packages
themselves.
"""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import family_peers as peers
import keras
import numpy as np
import pytest

import keras_vit
from keras_vit.weights import (
    configs,
    dialects,
    files,
    huggingface_config,
    identity,
    source,
    witness,
)
from keras_vit.weights.published_crop import find_crop

GOLDEN = Path(__file__).parents[1] / "golden" / "families"
OUTPUTS = np.load(GOLDEN / "outputs.npz")
RECORDED = [(package, name) for package, names in peers.RECORDED.items() for name in names]


def find(package, name):
    case = peers.ALL[package][name]
    variant = case.variant(peers.RECORDED_SIZES)
    return case, variant, GOLDEN / peers.name_folder(package, name)


def load(variant, path, width=peers.SIZE, **options):
    build = keras_vit.application(variant)
    return build(**{"weights": path, "input_shape": (peers.SIZE, width, 3), **options})


def compute(model, width=peers.SIZE):
    images = peers.images_of((peers.SIZE, width), count=1)
    return keras.ops.convert_to_numpy(model(images))


def with_logits(case, logits):
    return {"classes": logits.shape[-1], "classifier_activation": None, **case.options}


@pytest.mark.parametrize(("package", "name"), RECORDED)
@pytest.mark.sampled(11)
def test_recorded_tokens_and_logits(package, name):
    case, variant, folder = find(package, name)
    for width in (peers.SIZE, 56):
        key = f"{folder.name}/{width}"
        if f"{key}/tokens" not in OUTPUTS:
            continue
        options = {"width": width, "interpolation": case.rule}
        received = compute(load(variant, folder, include_top=False, **options), width)
        np.testing.assert_allclose(received, OUTPUTS[f"{key}/tokens"], atol=1e-4)
        if f"{key}/logits" in OUTPUTS:
            logits = OUTPUTS[f"{key}/logits"]
            model = load(variant, folder, **options, **with_logits(case, logits))
            np.testing.assert_allclose(compute(model, width), logits, atol=1e-4)


@pytest.mark.parametrize(("package", "name"), RECORDED)
@pytest.mark.sampled(4)
def test_bits_survive_every_layout_that_can_express_them(package, name, tmp_path):
    case, variant, folder = find(package, name)
    key = f"{folder.name}/{peers.SIZE}/logits"
    options = {"include_top": False} if key not in OUTPUTS else with_logits(case, OUTPUTS[key])
    model = load(variant, folder, **options)
    ends = {"google": ".npz", "huggingface": "", "keras": ".weights.h5"}
    for layout in ("google", "timm", "huggingface", "openclip", "keras"):
        path = tmp_path / f"{layout}{ends.get(layout, '.safetensors')}"
        try:
            if layout == "keras":
                model.save_weights(path)
            else:
                keras_vit.save_checkpoint(model, path, layout=layout)
        except ValueError as error:
            assert "cannot express" in str(error) and not path.exists()
            continue
        again = load(variant, path, **options)
        if layout == "timm" and "registers" in {layer.name for layer in model.layers}:
            # timm adds the position of the class token to the token.
            np.testing.assert_allclose(compute(again), compute(model), atol=1e-5)
            continue
        for before, after in zip(model.weights, again.weights, strict=True):
            np.testing.assert_array_equal(before, after, err_msg=before.path)
        np.testing.assert_array_equal(compute(again), compute(model))


# --- Meta's names, from the same numbers


def read(package, name):
    _, variant, folder = find(package, name)
    return variant, files.read(folder).arrays


def same_canonical(variant, theirs, expected):
    received = dialects.to_canonical(theirs, variant=variant)
    wanted = dialects.to_canonical(expected, variant=variant)
    assert received.keys() == wanted.keys()
    for name, x in wanted.items():
        np.testing.assert_array_equal(received[name], x, err_msg=name)


def test_dinov2_of_meta_has_registers_and_a_gated_mlp_of_its_own():
    variant, arrays = read("timm", "DINOv2 g")
    swap = {"mlp.fc1": "mlp.w12", "mlp.fc2": "mlp.w3"}
    theirs = {"mask_token": np.zeros((1, variant.width), "float32")}
    for name, x in arrays.items():
        for timm, meta in swap.items():
            name = name.replace(timm, meta)
        theirs[name] = x
    same_canonical(variant, theirs, arrays)


def test_dinov2_of_meta_with_registers_keeps_the_position_of_the_class_token():
    variant, arrays = read("timm", "DINOv2 reg4")
    row = np.ones_like(arrays["cls_token"])
    theirs = {name: x for name, x in arrays.items() if name != "reg_token"}
    theirs["register_tokens"] = arrays["reg_token"]
    theirs["cls_token"] = arrays["cls_token"] - row
    theirs["pos_embed"] = np.concatenate([row, arrays["pos_embed"]], axis=1)
    found = dialects.to_canonical(theirs, variant=variant)
    np.testing.assert_array_equal(found[dialects.POSITIONS], theirs["pos_embed"])
    folded = dialects.to_canonical(theirs, variant=replace(variant, class_position=False))
    np.testing.assert_array_equal(folded["cls"], theirs["cls_token"] + row)
    written = dialects.from_canonical(found, "timm", grid=(4, 4))
    assert written["pos_embed"].shape == arrays["pos_embed"].shape


def test_dinov3_of_meta_masks_the_biases_of_keys():
    variant, arrays = read("timm", "DINOv3 S+")
    theirs = {"rope_embed.periods": np.ones(2, "float32"), "mask_token": np.zeros((1, 16), "f")}
    for name, x in arrays.items():
        name = name.replace("reg_token", "storage_tokens").replace("gamma_", "ls")
        name = name.replace("fc1_g", "w1").replace("fc1_x", "w2").replace("mlp.fc2", "mlp.w3")
        name = name + ".gamma" if name[-3:] in ("ls1", "ls2") else name
        if name.endswith("v_bias"):
            continue
        if name.endswith("q_bias"):
            v = arrays[name.replace("q_bias", "v_bias")]
            stem = name.replace("q_bias", "qkv")
            theirs[f"{stem}.bias"] = np.concatenate([x, np.full_like(x, 7), v])
            theirs[f"{stem}.bias_mask"] = np.full(3 * len(x), np.nan, "float32")
        else:
            theirs[name] = x
    same_canonical(variant, theirs, arrays)


def test_dinov3_without_biases_of_queries_and_values_computes_what_zeros_compute(tmp_path):
    """The 7B model has none, and timm leaves them out where they are zero."""
    variant, arrays = read("timm", "DINOv3 qkvb")
    ends = ("q_bias", "v_bias")
    zeros = {name: np.zeros_like(x) if name.endswith(ends) else x for name, x in arrays.items()}
    canonical = dialects.to_canonical(zeros, variant=variant)
    images = peers.images_of((peers.SIZE,) * 2, count=1)
    expected = witness.forward(canonical, images, variant)["encoder_norm"]
    path = tmp_path / "model.safetensors"
    files.write_safetensors(path, {n: x for n, x in arrays.items() if not n.endswith(ends)})
    model = load(variant, path, include_top=False)
    np.testing.assert_allclose(compute(model), expected, atol=1e-4)


@pytest.mark.parametrize(
    "prefix",
    [
        "module.",
        "backbone.",
        "module.backbone.",
        "vision_encoder.",
        "visual.trunk.",
        "_orig_mod.",
        "module._orig_mod.",
    ],
)
def test_prefixes_of_training_scripts_are_removed(prefix):
    variant, arrays = read("timm", "DINOv2")
    theirs = {prefix + name: x for name, x in arrays.items()}
    beside = {
        "backbone.": "head.last_layer.weight",
        "vision_encoder.": "text_encoder.ln_final.weight",  # TIPSv2
        "visual.trunk.": "text.ln_final.weight",
    }
    for end, name in beside.items():
        if prefix.endswith(end):
            theirs[prefix.removesuffix(end) + name] = np.zeros((2, 2), "float32")
    same_canonical(variant, theirs, arrays)


def test_decoder_and_mask_token_of_mae_are_left_out():
    variant, arrays = read("timm", "MAE fine-tuned")
    beside = (
        "mask_token",
        "decoder_pos_embed",
        "decoder_embed.weight",
        "decoder_blocks.0.norm1.bias",
    )
    theirs = arrays | dict.fromkeys(beside, np.zeros((1, 1, 2), "float32"))
    same_canonical(variant, theirs, arrays)


def test_text_tower_of_openclip_is_left_out():
    variant, arrays = read("open_clip", "CLIP quickgelu")
    text = ("positional_embedding", "transformer.resblocks.0.ln_1.bias", "token_embedding.weight")
    theirs = arrays | dict.fromkeys(text, np.zeros((3, 4), "float32"))
    theirs |= {"logit_scale": np.zeros((), "float32"), "text_projection": np.zeros((4, 4), "f")}
    same_canonical(variant, theirs, arrays)


def test_projection_of_timm_has_a_bias_of_zeros_that_is_not_read():
    variant, arrays = read("timm", "CLIP")
    theirs = arrays | {"head.bias": np.zeros_like(arrays["head.bias"])}
    found = dialects.to_canonical(theirs, variant=variant)
    assert "head/bias" not in found
    assert not dialects.from_canonical(found, "timm")["head.bias"].any()


def test_a_classifier_of_siglip_reads_the_mean_and_not_the_attention_pooling():
    """SiglipForImageClassification has the arrays of the pooling, and does not use them."""
    variant, arrays = read("transformers", "SigLIP image tower")
    head = {"classifier.weight": np.ones((3, 16), "f"), "classifier.bias": np.ones(3, "f")}
    theirs = {f"vision_model.{name}": x for name, x in arrays.items()} | head
    used = {name: x for name, x in arrays.items() if not name.startswith("head.")}
    same_canonical(variant, theirs, used | head)


def test_so400m_of_big_vision(tmp_path):
    """SigLIP's own layout: under `params/img/`, blocks stacked, positions at the root."""
    row = keras_vit.variants.FAMILY_VARIANTS["SigLIP_So400m14"]
    row = replace(row, width=18, mlp_dim=68, depth=2, num_heads=2, patch_size=8)
    model = load(row, None, include_top=False, pooling="map")
    rng = np.random.default_rng(0)
    for weight in model.weights:
        weight.assign(rng.standard_normal(weight.shape))
    keras_vit.save_checkpoint(model, tmp_path / "ours.npz")
    arrays = dialects.to_canonical(files.read(tmp_path / "ours.npz").arrays)
    theirs = {"params/t": np.zeros(1, "float32"), "params/txt/head/bias": np.zeros(3, "float32")}
    block = "Transformer/encoderblock_0/"
    for name, x in arrays.items():
        if name.startswith(block):
            both = [x, arrays[name.replace("block_0", "block_1")]]
            theirs[f"params/img/Transformer/encoderblock/{name.removeprefix(block)}"] = np.stack(
                both
            )
        elif "encoderblock_1" not in name:
            short = "pos_embedding" if name == dialects.POSITIONS else name
            theirs[f"params/img/{short}"] = x
    files.write_npz(tmp_path / "theirs.npz", theirs)
    again = load(row, tmp_path / "theirs.npz", include_top=False, pooling="map")
    np.testing.assert_array_equal(compute(again), compute(model))


# --- what is written, against what the packages wrote

LAYOUTS = {"timm": "timm", "transformers": "huggingface", "open_clip": "openclip"}


@pytest.mark.parametrize(("package", "name"), RECORDED)
def test_arrays_are_written_as_their_package_wrote_them(package, name):
    variant, recorded = read(package, name)
    arrays = dialects.to_canonical(recorded, variant=variant)
    written = dialects.from_canonical(arrays, LAYOUTS[package], rotary=variant.rotary)
    assert written.keys() == recorded.keys()
    for key, x in recorded.items():
        # Mask tokens are not read, and are written as zeros.
        expected = np.zeros_like(x) if key.endswith("mask_token") else x
        np.testing.assert_array_equal(written[key], expected, err_msg=key, strict=True)


# MAE is written as a plain ViT.
@pytest.mark.parametrize("name", [each for each in peers.RECORDED["transformers"] if each != "MAE"])
def test_the_config_is_that_of_transformers(name):
    _, variant, folder = find("transformers", name)
    found = files.read(folder)
    arrays = dialects.to_canonical(found.arrays, variant=variant)
    facts = {"gelu": variant.gelu, "rotary": variant.rotary, **found.metadata}
    config = huggingface_config.make_config(arrays, facts)
    recorded = json.loads((folder / "config.json").read_text())
    for labels in ("id2label", "label2id"):  # Transformers lists some without a head too
        del config[labels]
    assert config == {key: recorded.get(key) for key in config}


# --- what files say of heads, configs and pixels


@pytest.fixture
def folder(tmp_path):
    """A writable copy of a recorded folder."""
    return shutil.copytree(find("transformers", "DINOv2 reg4")[2], tmp_path / "folder")


def change(path, **fields):
    config = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps({**config, **fields}))


def test_another_head_count_than_the_row_s_is_an_error():
    _, variant, folder = find("transformers", "DINOv2 reg4")
    with pytest.raises(ValueError, match="trained with 2 attention heads, and .* has 4"):
        load(replace(variant, num_heads=4), folder, include_top=False)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("num_hidden_layers", 2),
        ("num_register_tokens", 3),
        ("hidden_size", 32),
        ("use_swiglu_ffn", True),
    ],
)
def test_a_config_of_other_arrays_is_an_error(field, value, folder):
    change(folder / "config.json", **{field: value})
    with pytest.raises(ValueError, match=f"config.json.*{field} is .* and its arrays have"):
        load(find("transformers", "DINOv2 reg4")[1], folder, include_top=False)


@pytest.mark.parametrize(
    ("name", "fields", "message"),
    [
        ("DINOv3", {"rope_theta": 10000.0}, "rope_theta is 10000.0. Only 100 is implemented"),
        ("DINOv3 S+", {"hidden_act": "gelu"}, "hidden_act of its gated MLP is 'gelu'"),
    ],
)
def test_other_computations_in_a_config_are_refused(name, fields, message, tmp_path):
    _, variant, recorded = find("transformers", name)
    folder = shutil.copytree(recorded, tmp_path / "folder")
    change(folder / "config.json", **fields)
    with pytest.raises(ValueError, match=message):
        load(variant, folder, include_top=False)


@pytest.mark.parametrize(
    ("fields", "mean", "std"),
    [
        ({"image_mean": [0.1, 0.2, 0.3], "image_std": [0.4] * 3}, (0.1, 0.2, 0.3), (0.4,) * 3),
        (
            {"image_mean": [0.1] * 3, "image_std": [1] * 3, "do_normalize": False},
            (0,) * 3,
            (1,) * 3,
        ),
        (
            {"image_mean": [51.0] * 3, "image_std": [102.0] * 3, "do_rescale": False},
            (0.2,) * 3,
            (0.4,) * 3,
        ),
        # pixels from 0 to 2
        (
            {"image_mean": [1.0] * 3, "image_std": [0.5] * 3, "rescale_factor": 1 / 127.5},
            (0.5,) * 3,
            (0.25,) * 3,
        ),
    ],
)
def test_pixels_are_those_of_the_preprocessor(fields, mean, std, folder):
    change(folder / "preprocessor_config.json", **fields)
    model = load(find("transformers", "DINOv2 reg4")[1], folder, include_top=False)
    layer = model.get_layer("pixel_normalization")
    np.testing.assert_allclose(layer.mean, mean)
    np.testing.assert_allclose(layer.std, std)


@pytest.fixture
def clip(tmp_path):
    """A folder as OpenCLIP publishes it; the row of the reader has another GELU and other pixels."""
    case, variant, golden = find("open_clip", "CLIP quickgelu")
    folder = tmp_path / "clip"
    folder.mkdir()
    shutil.copy(golden / "model.safetensors", folder / "open_clip_model.safetensors")
    vision = {"image_size": peers.SIZE, "layers": 1, "width": variant.width, "patch_size": 8}
    change(
        folder / "open_clip_config.json",
        model_cfg={"quick_gelu": True, "vision_cfg": vision | {"head_width": 8}},
        preprocess_cfg={"mean": variant.pixel_mean, "std": variant.pixel_std},
    )
    other = replace(variant, gelu="exact", pixel_mean=(0.5,) * 3, pixel_std=(0.5,) * 3)
    return case, other, folder


def test_a_folder_of_openclip_says_its_gelu_and_its_pixels(clip):
    case, variant, folder = clip
    logits = OUTPUTS[f"open_clip_clip_quickgelu/{peers.SIZE}/logits"]
    model = load(variant, folder, interpolation=case.rule, **with_logits(case, logits))
    np.testing.assert_allclose(compute(model), logits, atol=1e-4)


@pytest.mark.parametrize(
    ("vision", "message"),
    [({"head_width": 4}, "trained with 4 attention heads"), ({"head_width": "x"}, "head_width is")],
)
def test_the_head_width_of_openclip_is_checked(vision, message, clip):
    _, variant, folder = clip
    change(folder / "open_clip_config.json", model_cfg={"vision_cfg": {"width": 16, **vision}})
    with pytest.raises(ValueError, match=message):
        load(variant, folder, include_top=False)


HUGGING_FACE_CROPS = [
    ({"size": {"shortest_edge": 256}, "do_center_crop": True, "crop_size": {"height": 224}}, 0.875),
    ({"size": {"shortest_edge": 224}, "do_center_crop": True, "crop_size": 224}, 1),
    ({"size": {"height": 224, "width": 224}}, "resize"),
    ({"size": 224, "do_center_crop": False}, "resize"),
    ({"size": {"shortest_edge": 224}}, None),
    ({"size": {"height": 256, "width": 256}, "do_center_crop": True, "crop_size": 224}, None),
    ({"size": {"shortest_edge": 224}, "do_center_crop": True, "crop_size": 256}, None),
    ({"size": {"shortest_edge": "x"}, "do_center_crop": True, "crop_size": []}, None),
    ({"size": 224, "do_resize": False}, None),
    ({}, None),
]
TIMM_CROPS = [
    ({"crop_pct": 0.9}, 0.9),
    ({"crop_pct": 1, "crop_mode": "center"}, 1),
    ({"crop_pct": 1.0, "crop_mode": "squash"}, "resize"),
    ({"crop_pct": 0.9, "crop_mode": "squash"}, None),
    ({"crop_pct": 0.9, "crop_mode": "border"}, None),
    ({"crop_pct": 1.2}, None),
    ({"crop_pct": "0.9"}, None),
    ({}, None),
]


@pytest.mark.parametrize(
    ("name", "fields", "crop"),
    [("preprocessor_config.json", fields, crop) for fields, crop in HUGGING_FACE_CROPS]
    + [("config.json", {"pretrained_cfg": fields}, crop) for fields, crop in TIMM_CROPS],
)
def test_the_crop_is_that_of_the_files_beside_the_weights(name, fields, crop, tmp_path):
    (tmp_path / name).write_text(json.dumps(fields))
    (tmp_path / "model.safetensors").touch()
    expected = f"central:{crop:g}" if isinstance(crop, int | float) else crop
    for path in (tmp_path, tmp_path / "model.safetensors"):
        assert find_crop("DeiT_B16", path) == expected


@pytest.mark.parametrize(
    ("model", "tag", "crop"),
    [
        ("ViT_B16", "imagenet", "resize"),
        ("ViT_B16", "sam", "resize_shorter"),
        ("DeiT_B16", "in1k", "central:0.9"),
        ("DINOv2_B14", "lvd142m_in1k", "central:0.875"),
        ("SigLIP_B16", "webli", "resize"),
        ("CLIP_B16", "openai", "central:1"),
    ],
)
def test_the_crop_of_a_tag_is_that_of_the_catalog(model, tag, crop):
    assert find_crop(model, tag) == crop


@pytest.mark.parametrize("value", [[0.1, 0.2], "x", [0.1, 0.2, None], [0.0] * 3, [1e9] * 3])
def test_deviations_that_are_none_are_refused(value, folder):
    change(folder / "preprocessor_config.json", image_std=value)
    with pytest.raises(ValueError, match="preprocessor_config.json.*pixel_std is"):
        load(find("transformers", "DINOv2 reg4")[1], folder, include_top=False)


@pytest.mark.parametrize("target", ["a.npz", "a.safetensors", "folder_of_it", "a.weights.h5"])
def test_pixels_survive_saving(target, folder, tmp_path):
    change(folder / "preprocessor_config.json", image_mean=[0.1, 0.2, 0.3], image_std=[0.3] * 3)
    variant = find("transformers", "DINOv2 reg4")[1]
    model = load(variant, folder, include_top=False)
    if target.endswith("h5"):
        model.save_weights(tmp_path / target)
    else:
        keras_vit.save_checkpoint(model, tmp_path / target)
    again = load(variant, tmp_path / target, include_top=False)
    assert tuple(again.get_layer("pixel_normalization").mean) == (0.1, 0.2, 0.3)
    np.testing.assert_array_equal(compute(again), compute(model))


def test_images_of_part_patches_are_those_that_the_patches_see(tmp_path):
    """SigLIP takes 384 pixels with patches of 14, so 378."""
    _, variant, recorded = find("timm", "CLIP")
    folder = shutil.copytree(recorded, tmp_path / "folder")
    pretrained = {"input_size": [3, 38, 39]}
    change(folder / "config.json", architecture="vit_x", pretrained_cfg=pretrained)
    found = source.load(source.find("CLIP", folder, variant=variant))
    assert variant.patch_size == 8 and found.image_size == (32, 32)


@pytest.mark.parametrize(
    ("name", "gelu"),
    [
        ("vit_base_patch16_clip_224", "exact"),
        ("vit_base_patch16_clip_quickgelu_224", "quick"),
        ("vit_base_patch16_224", None),  # the row of the model decides
        (None, None),
    ],
)
def test_the_gelu_of_timm_s_clip_is_in_the_name(name, gelu):
    assert configs._find_timm_gelu(name) == gelu


def test_the_heads_of_openclip_are_64_wide_unless_it_says_otherwise(tmp_path):
    path = tmp_path / "open_clip_config.json"
    for vision, heads in (({"width": 768}, 12), ({"width": 768, "head_width": 96}, 8)):
        found = configs._read_open_clip(path, {"model_cfg": {"vision_cfg": vision}})
        assert found["num_heads"] == heads


def test_timm_config_says_pixels_size_and_gelu(tmp_path):
    _, variant, recorded = find("timm", "CLIP")
    folder = shutil.copytree(recorded, tmp_path / "folder")
    pretrained = {"mean": [0.1] * 3, "std": [0.2] * 3, "input_size": [3, 32, 32]}
    name = "vit_base_patch16_clip_quickgelu_224"
    (folder / "config.json").write_text(
        json.dumps({"architecture": name, "pretrained_cfg": pretrained})
    )
    found = source.load(source.find("CLIP", folder, variant=variant))
    assert (found.gelu, found.image_size) == ("quick", (32, 32))
    assert found.pixel_mean == (0.1,) * 3 and found.pixel_std == (0.2,) * 3


def test_a_classifier_on_clip_s_raw_tokens_is_refused():
    variant, arrays = read("transformers", "CLIP image tower")
    theirs = arrays | {"classifier.weight": np.zeros((2, 16), "float32")}
    with pytest.raises(ValueError, match="a classifier on CLIP's tokens without their last norm"):
        dialects.to_canonical(theirs, variant=variant)


def test_a_head_that_reads_something_else_is_not_written_for_transformers(tmp_path):
    case, variant, folder = find("timm", "DINOv2")
    logits = OUTPUTS[f"{folder.name}/{peers.SIZE}/logits"]
    model = load(variant, folder, **with_logits(case, logits))
    with pytest.raises(ValueError, match=r"Dinov2ForImageClassification reads 'token_avg', and"):
        keras_vit.save_checkpoint(model, tmp_path / "folder")
    assert not (tmp_path / "folder").exists()


def test_messages_name_the_model_that_was_asked_for(folder):
    (folder / "config.json").unlink()
    origin = source.Origin(name="file", model="DINO_B16", canonical=_shapes("ViT_B16"))
    assert str(origin) == "file"
    other = source.Origin(name="file", model="DINO_S16", canonical=_shapes("ViT_B16"))
    assert str(other) == "file, whose arrays are those of ViT_B16,"


def test_a_file_is_described_as_the_model_that_it_is_said_to_be(tmp_path):
    model = keras_vit.DINO_S16(weights=None, input_shape=(32, 32, 3), classes=2)
    keras_vit.save_checkpoint(model, tmp_path / "a.safetensors")
    assert identity.examine(str(tmp_path / "a.safetensors")).model == "ViT_S16"
    found = identity.examine(str(tmp_path / "a.safetensors"), "DINO_S16")
    assert (found.model, found.doubts) == ("DINO_S16", [])
    described = [
        dict(identity.examine(str(tmp_path / "a.safetensors"), name).facts)["model"]
        for name in ("DINO_S16", None)
    ]
    assert described == [
        "DINO_S16, as named; the shapes match",
        "ViT_S16, identified by the shapes",
    ]


def _shapes(name):
    from synthetic_checkpoint import array_shapes

    shapes = array_shapes(keras_vit.variants.VIT_VARIANTS[name])
    return {key: np.broadcast_to(np.float32(0), shape) for key, shape in shapes.items()}
