"""The folder of a masked autoencoder for Transformers, against NumPy and against Transformers."""

import dataclasses
import json

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit.models.mae import encoder_of, masked_autoencoder
from keras_vit.variants import FAMILY_VARIANTS, VIT_VARIANTS
from keras_vit.weights import files
from keras_vit.weights.huggingface_mae import find_problems, save_vit_mae

SIZE = 32
SIZES = {"patch_size": 8, "width": 32, "depth": 2, "num_heads": 4, "mlp_dim": 48}
DECODER = {"decoder_width": 16, "decoder_depth": 2, "decoder_heads": 2}
CASES = {
    "MAE": (FAMILY_VARIANTS["MAE_B16"], {}),
    "pixels, tanh, another share": (
        VIT_VARIANTS["ViT_B16"],
        {"normalize_pixels": False, "mask_share": 0.6},
    ),
}


def build(row, **options) -> keras.Model:
    row = dataclasses.replace(row, name="tiny", **SIZES)
    model = masked_autoencoder(row, SIZE, **{**DECODER, **options})
    for index, variable in enumerate(model.trainable_variables):
        variable.assign(np.random.RandomState(index).normal(size=variable.shape) * 0.2)
    return model


def draw(count: int = 3) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.RandomState(0)
    pixels = random.uniform(-1, 1, (count, SIZE, SIZE, 3)).astype("float32")
    return pixels, random.uniform(size=(count, 16)).astype("float32")


@pytest.fixture(scope="module", params=CASES)
def written(request, tmp_path_factory):
    row, options = CASES[request.param]
    model, folder = build(row, **options), tmp_path_factory.mktemp("mae") / "vit_mae"
    save_vit_mae(model, folder)
    return model, folder


# --- a witness: the forward pass of `ViTMAEForPreTraining` in NumPy, from its files


def gelu(x: np.ndarray, kind: str) -> np.ndarray:
    if kind == "gelu_pytorch_tanh":
        return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))
    assert kind == "gelu"
    from math import erf

    return 0.5 * x * (1 + np.vectorize(erf)(x / np.sqrt(2)))


class Witness:
    def __init__(self, folder):
        self.arrays = files.read(folder).arrays
        self.config = json.loads((folder / "config.json").read_text())
        self.processor = json.loads((folder / "preprocessor_config.json").read_text())

    def dense(self, x, name):
        return x @ self.arrays[f"{name}.weight"].T + self.arrays[f"{name}.bias"]

    def norm(self, x, name):
        x = x - x.mean(-1, keepdims=True)
        x = x / np.sqrt((x**2).mean(-1, keepdims=True) + self.config["layer_norm_eps"])
        return x * self.arrays[f"{name}.weight"] + self.arrays[f"{name}.bias"]

    def attend(self, x, name, heads):
        batch, length, width = x.shape
        q, k, v = (
            self.dense(x, f"{name}.attention.{part}")
            .reshape(batch, length, heads, -1)
            .transpose(0, 2, 1, 3)
            for part in ("query", "key", "value")
        )
        logits = q @ k.transpose(0, 1, 3, 2) / np.sqrt(width / heads)
        weights = np.exp(logits - logits.max(-1, keepdims=True))
        mixed = weights / weights.sum(-1, keepdims=True) @ v
        return self.dense(mixed.transpose(0, 2, 1, 3).reshape(x.shape), f"{name}.output.dense")

    def block(self, x, name, heads):
        x = x + self.attend(self.norm(x, f"{name}.layernorm_before"), f"{name}.attention", heads)
        hidden = self.dense(self.norm(x, f"{name}.layernorm_after"), f"{name}.intermediate.dense")
        return x + self.dense(gelu(hidden, self.config["hidden_act"]), f"{name}.output.dense")

    def __call__(self, images, noise):
        config, arrays = self.config, self.arrays
        mean, std = (np.array(self.processor[f"image_{name}"]) for name in ("mean", "std"))
        x = (images.astype("float64") / 2 + 0.5 - mean) / std
        side = config["patch_size"]
        grid = config["image_size"] // side
        x = x.reshape(len(x), grid, side, grid, side, 3).transpose(0, 1, 3, 2, 4, 5)
        patches = x.reshape(len(x), grid * grid, side, side, 3)
        kernel = arrays["vit.embeddings.patch_embeddings.projection.weight"]  # (D, C, P, P)
        tokens = np.einsum("bnijc,dcij->bnd", patches, kernel)
        tokens = tokens + arrays["vit.embeddings.patch_embeddings.projection.bias"]
        table = arrays["vit.embeddings.position_embeddings"]
        tokens = tokens + table[:, 1:]
        count = int(tokens.shape[1] * (1 - config["mask_ratio"]))
        shown = noise.argsort(axis=1)[:, :count]
        tokens = np.take_along_axis(tokens, shown[..., None], axis=1)
        first = arrays["vit.embeddings.cls_token"] + table[:, :1]
        tokens = np.concatenate([np.repeat(first, len(tokens), axis=0), tokens], axis=1)
        for index in range(config["num_hidden_layers"]):
            tokens = self.block(tokens, f"vit.encoder.layer.{index}", config["num_attention_heads"])
        tokens = self.dense(self.norm(tokens, "vit.layernorm"), "decoder.decoder_embed")
        mask = np.ones(noise.shape)
        np.put_along_axis(mask, shown, 0, axis=1)
        whole = np.repeat(arrays["decoder.mask_token"], len(tokens), axis=0)
        whole = np.repeat(whole, noise.shape[1], axis=1).astype("float64")
        np.put_along_axis(whole, shown[..., None].repeat(whole.shape[-1], -1), tokens[:, 1:], 1)
        tokens = (
            np.concatenate([tokens[:, :1], whole], axis=1) + arrays["decoder.decoder_pos_embed"]
        )
        for index in range(config["decoder_num_hidden_layers"]):
            heads = config["decoder_num_attention_heads"]
            tokens = self.block(tokens, f"decoder.decoder_layers.{index}", heads)
        tokens = self.norm(tokens, "decoder.decoder_norm")
        predictions = self.dense(tokens, "decoder.decoder_pred")[:, 1:]
        targets = patches.reshape(*patches.shape[:2], -1)
        if config["norm_pix_loss"]:
            center = targets.mean(-1, keepdims=True)
            targets = (targets - center) / np.sqrt(targets.var(-1, ddof=1, keepdims=True) + 1e-6)
        loss = (((predictions - targets) ** 2).mean(-1) * mask).sum() / mask.sum()
        return predictions, mask, loss


def test_the_files_compute_what_the_model_computes(written):
    model, folder = written
    images, noise = draw()
    predictions, targets, mask = map(keras.ops.convert_to_numpy, model([images, noise]))
    expected, expected_mask, expected_loss = Witness(folder)(images, noise)
    assert np.abs(expected).max() > 0.5
    np.testing.assert_allclose(predictions, expected, atol=2e-5)
    np.testing.assert_array_equal(mask, expected_mask)
    loss = (((predictions - targets) ** 2).mean(-1) * mask).sum() / mask.sum()
    assert loss == pytest.approx(expected_loss, rel=1e-5)


def test_transformers_computes_what_the_model_computes(written):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    transformers = pytest.importorskip("transformers")
    model, folder = written
    images, noise = draw()
    predictions, targets, mask = map(keras.ops.convert_to_numpy, model([images, noise]))
    theirs, report = transformers.ViTMAEForPreTraining.from_pretrained(
        folder, output_loading_info=True
    )
    assert not any(report.values())
    processor = json.loads((folder / "preprocessor_config.json").read_text())
    pixels = (images / 2 + 0.5 - processor["image_mean"]) / np.array(processor["image_std"])
    pixels = torch.from_numpy(pixels.transpose(0, 3, 1, 2).astype("float32"))
    with torch.no_grad():
        answer = theirs.eval()(pixels, noise=torch.from_numpy(noise))
    assert np.abs(answer.logits.numpy() - predictions).max() < 1e-4 * np.abs(predictions).max()
    np.testing.assert_array_equal(answer.mask.numpy(), mask)
    loss = (((predictions - targets) ** 2).mean(-1) * mask).sum() / mask.sum()
    assert float(answer.loss) == pytest.approx(loss, rel=1e-5)


def test_the_config_describes_encoder_decoder_and_mask(written):
    model, folder = written
    config = json.loads((folder / "config.json").read_text())
    expected = {
        "architectures": ["ViTMAEForPreTraining"],
        "model_type": "vit_mae",
        "hidden_size": 32,
        "num_attention_heads": 4,
        "intermediate_size": 48,
        "image_size": 32,
        "patch_size": 8,
        "layer_norm_eps": 1e-6,
        "qkv_bias": True,
        "decoder_hidden_size": 16,
        "decoder_num_hidden_layers": 2,
        "decoder_num_attention_heads": 2,
        "decoder_intermediate_size": 64,
        "mask_ratio": model.get_layer("random_mask").mask_share,
        "norm_pix_loss": "target_normalization" in {layer.name for layer in model.layers},
    }
    assert {name: config[name] for name in expected} == expected


def test_the_folder_is_read_as_the_encoder(written):
    model, folder = written
    row = dataclasses.replace(VIT_VARIANTS["ViT_B16"], name="tiny", **SIZES)
    options = {"include_top": False, "input_shape": (SIZE, SIZE, 3)}
    encoder = keras_vit.application(row)(weights=folder, **options)
    images, _ = draw()
    expected, found = (
        keras.ops.convert_to_numpy(which(images)) for which in (encoder_of(model), encoder)
    )
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_what_transformers_cannot_express_is_said(tmp_path):
    row = VIT_VARIANTS["ViT_B16"]
    model = build(row, class_token=False, position_embedding="sincos2d", decoder_depth=1)
    assert len(find_problems(model)) == 2
    with pytest.raises(ValueError, match="its encoder has no class token, its positions are not a"):
        save_vit_mae(model, tmp_path / "vit_mae")
    registers = build(dataclasses.replace(row, num_registers=2), decoder_depth=1)
    with pytest.raises(ValueError, match="its encoder is that of a dinov2_with_registers"):
        save_vit_mae(registers, tmp_path / "vit_mae")
    broken = build(row, decoder_depth=1)
    assert find_problems(broken) == []
    broken.get_layer("decoder_mask_token").mask.assign(np.full((1, 1, 16), np.nan))
    with pytest.raises(ValueError, match="is not written: 1 of .*decoder.mask_token"):
        save_vit_mae(broken, tmp_path / "vit_mae")
    assert not (tmp_path / "vit_mae").exists()
