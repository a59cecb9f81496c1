"""The same checkpoint in timm, in Hugging Face Transformers and here. Skipped where torch is
absent.
"""

import importlib

import numpy as np
import pytest
from synthetic_checkpoint import checkpoint, synthetic_images
from torch_peers import import_timm

import keras_vit
from keras_vit.grid import INTERPOLATIONS, resize_positions
from keras_vit.variants import RESNET_VARIANTS, VIT_VARIANTS
from keras_vit.weights import layouts

torch = pytest.importorskip("torch", reason="torch is not installed")

pytestmark = [
    # torch and timm warn about their own parts.
    pytest.mark.filterwarnings("ignore"),
]

ROWS = VIT_VARIANTS | RESNET_VARIANTS
# (our name, timm's name, options for us, options for timm)
MODELS = [
    ("ViT_Ti16", "vit_tiny_patch16_224", {}, {}),
    ("ViT_B16", "vit_base_patch16_224", {}, {}),
    ("ViT_B32", "vit_base_patch32_224", {}, {}),
    ("R_ViT_Ti16", "vit_tiny_r_s16_p8_224", {}, {}),
    ("R50_ViT_B16", "vit_base_r50_s16_224", {}, {}),
    ("BiT_R50x1", "resnetv2_50x1_bit", {"pool_padding": "zeros"}, {}),
]


def _published(name, path, **options):
    np.savez(path, **layouts.to_published(checkpoint(ROWS[name], **options)))
    return path


def _timm_logits(model, images):
    with torch.no_grad():
        return model.eval()(torch.from_numpy(images.transpose(0, 3, 1, 2).copy())).numpy()


def _assert_close(ours, theirs, tolerance=1e-4):
    assert np.abs(ours - theirs).max() < tolerance * np.abs(theirs).max()
    assert (ours.argmax(1) == theirs.argmax(1)).all()


@pytest.mark.parametrize(
    ("name", "peer", "options", "peer_options"), MODELS, ids=[row[0] for row in MODELS]
)
def test_timm_reads_the_same_npz(name, peer, options, peer_options, tmp_path):
    timm = import_timm()
    path = _published(name, tmp_path / "published.npz")
    theirs = timm.create_model(peer, pretrained=False, num_classes=1000, **peer_options)
    theirs.load_pretrained(str(path))
    if name in VIT_VARIANTS:
        options = {"gelu": "exact", **options}
    ours = getattr(keras_vit, name)(
        weights=path, input_shape=(224, 224, 3), classifier_activation=None, **options
    )
    images = synthetic_images(224, 224)
    _assert_close(ours.predict(images, verbose=0), _timm_logits(theirs, images))


@pytest.mark.parametrize("size", [(384, 384), (96, 160)])
def test_timm_resizes_positions_of_an_npz_its_own_way(size, tmp_path):
    timm = import_timm()
    path = _published("ViT_Ti16", tmp_path / "published.npz")
    theirs = timm.create_model("vit_tiny_patch16_224", num_classes=1000, img_size=size)
    theirs.load_pretrained(str(path))
    images = synthetic_images(*size)
    expected = _timm_logits(theirs, images)
    options = {
        "weights": path,
        "input_shape": (*size, 3),
        "classifier_activation": None,
        "gelu": "exact",
    }
    ours = keras_vit.ViT_Ti16(interpolation="bilinear_half_pixel", **options)
    _assert_close(ours.predict(images, verbose=0), expected)
    published = keras_vit.ViT_Ti16(**options).predict(images, verbose=0)
    assert np.abs(published - expected).max() > 1e-3 * np.abs(expected).max()


# New sizes in pixels of tables that belong to images of 56 pixels and patches of 14: a grid of 4.
SIZES = [(112, 112), (28, 28), (56, 98), (42, 70)]


@pytest.mark.parametrize("size", SIZES)
def test_timm_resizes_positions_of_a_state_dict_its_own_way(size):
    import_timm()
    from timm.layers import resample_abs_pos_embed

    table = np.random.default_rng(0).standard_normal((1, 17, 8)).astype("float32")
    new = (size[0] // 14, size[1] // 14)
    theirs = resample_abs_pos_embed(
        torch.from_numpy(table), new_size=list(new), old_size=[4, 4]
    ).numpy()
    ours = resize_positions(table, (4, 4), new, "bicubic_antialias")
    np.testing.assert_allclose(ours, theirs, atol=1e-5)


# (configuration, module and class of the embeddings, prefix tokens, rule)
TRANSFORMERS_RULES = [
    ("ViTConfig", "vit", "ViTEmbeddings", 1, "bicubic"),
    ("DeiTConfig", "deit", "DeiTEmbeddings", 2, "bicubic"),
    ("ViTMAEConfig", "vit_mae", "ViTMAEEmbeddings", 1, "bicubic"),
    ("IJepaConfig", "ijepa", "IJepaEmbeddings", 0, "bicubic"),
    ("SiglipVisionConfig", "siglip", "SiglipVisionEmbeddings", 0, "bicubic"),
    ("CLIPVisionConfig", "clip", "CLIPVisionEmbeddings", 1, "bicubic"),
    ("Dinov2Config", "dinov2", "Dinov2Embeddings", 1, "bicubic"),
    (
        "Dinov2WithRegistersConfig",
        "dinov2_with_registers",
        "Dinov2WithRegistersEmbeddings",
        1,
        "bicubic_antialias",
    ),
]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(
    ("config", "module", "embeddings", "num_prefix_tokens", "rule"),
    TRANSFORMERS_RULES,
    ids=[row[1] for row in TRANSFORMERS_RULES],
)
def test_transformers_resize_positions_by_the_rule_in_our_table(
    config, module, embeddings, num_prefix_tokens, rule, size
):
    transformers = pytest.importorskip("transformers")
    library = importlib.import_module(f"transformers.models.{module}.modeling_{module}")
    theirs = getattr(library, embeddings)(
        getattr(transformers, config)(hidden_size=12, image_size=56, patch_size=14)
    )
    table = np.random.default_rng(0).standard_normal((1, num_prefix_tokens + 16, 12))
    table = table.astype("float32")
    if hasattr(theirs, "position_embeddings"):
        theirs.position_embeddings.data = torch.from_numpy(table)
    else:
        theirs.position_embedding.weight.data = torch.from_numpy(table[0])
    new = (size[0] // 14, size[1] // 14)
    tokens = torch.zeros(1, num_prefix_tokens + new[0] * new[1], 12)
    with torch.no_grad():
        expected = theirs.interpolate_pos_encoding(tokens, *size).numpy()
    ours = resize_positions(table, (4, 4), new, rule)
    np.testing.assert_allclose(ours, expected, atol=1e-5)
    others = [resize_positions(table, (4, 4), new, name) for name in INTERPOLATIONS if name != rule]
    assert not any(np.allclose(other, expected, atol=1e-3) for other in others)


@pytest.mark.parametrize(
    ("name", "peer", "options"),
    [
        ("ViT_Ti16", "vit_tiny_patch16_224", {}),
        ("R_ViT_Ti16", "vit_tiny_r_s16_p8_224", {}),
        ("BiT_R50x1", "resnetv2_50x1_bit", {"pool_padding": "zeros"}),
    ],
)
def test_timm_loads_what_we_save(name, peer, options, tmp_path):
    timm = import_timm()
    from safetensors.torch import load_file

    if name in VIT_VARIANTS:
        options = {"gelu": "exact", **options}
    path = _published(name, tmp_path / "published.npz")
    ours = getattr(keras_vit, name)(
        weights=path, input_shape=(224, 224, 3), classifier_activation=None, **options
    )
    keras_vit.save_checkpoint(ours, tmp_path / "model.safetensors")
    theirs = timm.create_model(peer, num_classes=1000)
    theirs.load_state_dict(load_file(tmp_path / "model.safetensors"), strict=True)
    images = synthetic_images(224, 224)
    _assert_close(ours.predict(images, verbose=0), _timm_logits(theirs, images))


@pytest.mark.parametrize("gelu", ["tanh", "exact"])
def test_transformers_load_what_we_save(gelu, tmp_path):
    transformers = pytest.importorskip("transformers")
    path = _published("ViT_Ti16", tmp_path / "published.npz")
    ours = keras_vit.ViT_Ti16(
        weights=path, input_shape=(224, 224, 3), classifier_activation=None, gelu=gelu
    )
    keras_vit.save_checkpoint(ours, tmp_path / "folder")
    theirs, report = transformers.ViTForImageClassification.from_pretrained(
        tmp_path / "folder", output_loading_info=True
    )
    assert not any(report[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    images = synthetic_images(224, 224)
    with torch.no_grad():
        logits = theirs.eval()(torch.from_numpy(images.transpose(0, 3, 1, 2).copy())).logits.numpy()
    _assert_close(ours.predict(images, verbose=0), logits)
    again = keras_vit.ViT_Ti16(
        weights=tmp_path / "folder", input_shape=(224, 224, 3), classifier_activation=None
    )
    assert again.get_layer("encoderblock_0").gelu == gelu
    np.testing.assert_array_equal(again.predict(images, verbose=0), ours.predict(images, verbose=0))


def test_we_load_what_transformers_save(tmp_path):
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.ViTConfig(
        hidden_size=192,
        num_hidden_layers=12,
        num_attention_heads=3,
        intermediate_size=768,
        num_labels=10,
        image_size=64,
    )
    theirs = transformers.ViTForImageClassification(config)
    for parameter in theirs.parameters():
        torch.nn.init.normal_(parameter, std=0.1)
    theirs.save_pretrained(tmp_path / "folder")
    ours = keras_vit.ViT_Ti16(weights=tmp_path / "folder", classes=10, classifier_activation=None)
    assert ours.input_shape == (None, 64, 64, 3)
    assert ours.get_layer("encoder_norm").epsilon == config.layer_norm_eps
    images = synthetic_images(64, 64)
    with torch.no_grad():
        logits = theirs.eval()(torch.from_numpy(images.transpose(0, 3, 1, 2).copy())).logits.numpy()
    _assert_close(ours.predict(images, verbose=0), logits)
