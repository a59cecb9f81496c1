"""Writes the folders beside this script: small models of transformers 4 on TensorFlow, as its
`save_pretrained` writes them, and `outputs.npz`, what they compute.

    python3.11 -m venv tf4
    tf4/bin/pip install "transformers==4.49.*" "tensorflow<2.20" "tf-keras<2.20" h5py pillow
    TF_USE_LEGACY_KERAS=1 tf4/bin/python tests/golden/transformers_h5/make.py

All weights are random normal numbers, also biases and norms, so that two arrays in each other's
place change every output. transformers 5 has no TensorFlow, so this script needs an environment of
its own. No code of this package takes part.
"""

import shutil
from pathlib import Path

import numpy as np
import tensorflow as tf
import transformers
from PIL import Image

FOLDER = Path(__file__).parent
IMAGE_SIZE = 32
SHAPE = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "patch_size": 8,
    "image_size": IMAGE_SIZE,
}
LABELS = {0: "daisy", 1: "tulip", 2: "rose"}
CLASSES = {"id2label": LABELS, "label2id": {label: index for index, label in LABELS.items()}}
DECODER = {
    "decoder_hidden_size": 8,
    "decoder_num_hidden_layers": 1,
    "decoder_num_attention_heads": 2,
    "decoder_intermediate_size": 8,
}
TEXT = {
    "hidden_size": 8,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 8,
}
# {folder: (class, configuration, options of save_pretrained)}
MODELS = {
    "vit": (
        transformers.TFViTModel,
        transformers.ViTConfig(**SHAPE),
        {},
    ),
    "vit_classifier": (
        transformers.TFViTForImageClassification,
        # Not the default epsilon and GELU: the reader takes them from config.json.
        transformers.ViTConfig(**SHAPE, **CLASSES, layer_norm_eps=1e-3, hidden_act="gelu_new"),
        {},
    ),
    "vit_in_shards": (
        transformers.TFViTForImageClassification,
        transformers.ViTConfig(**SHAPE, **CLASSES),
        {"max_shard_size": "15KB"},
    ),
    "vit_safetensors": (
        transformers.TFViTForImageClassification,
        transformers.ViTConfig(**SHAPE, **CLASSES),
        {"safe_serialization": True},
    ),
    "mae": (
        transformers.TFViTMAEForPreTraining,
        transformers.ViTMAEConfig(**SHAPE, **DECODER, mask_ratio=0.0),
        {},
    ),
    "deit": (
        transformers.TFDeiTModel,
        transformers.DeiTConfig(**SHAPE),
        {},
    ),
    "deit_classifier": (
        transformers.TFDeiTForImageClassification,
        transformers.DeiTConfig(**SHAPE, **CLASSES),
        {},
    ),
    "deit_distilled": (
        transformers.TFDeiTForImageClassificationWithTeacher,
        transformers.DeiTConfig(**SHAPE, **CLASSES),
        {},
    ),
    "clip": (
        transformers.TFCLIPVisionModel,
        transformers.CLIPVisionConfig(**SHAPE),
        {},
    ),
    "clip_with_text": (
        transformers.TFCLIPModel,
        transformers.CLIPConfig(
            text_config={**TEXT, "vocab_size": 8, "max_position_embeddings": 4},
            vision_config=SHAPE,
            projection_dim=6,
        ),
        {},
    ),
}
OUTPUTS = (
    "last_hidden_state",
    "pooler_output",
    "logits",
    "cls_logits",
    "distillation_logits",
)


def make_images(height: int, width: int) -> np.ndarray:
    """(2, H, W, 3) float32 in [-1, 1]; the tests make the same ones."""
    return np.random.default_rng(0).uniform(-1, 1, (2, height, width, 3)).astype("float32")


def make_photo() -> np.ndarray:
    """(96, 140, 3) uint8; the tests make the same one."""
    return np.random.default_rng(0).integers(0, 256, (96, 140, 3), dtype="uint8")


def randomize(model: tf.Module) -> None:
    rng = np.random.default_rng(1)
    for weight in model.weights:
        weight.assign(
            0.3 * rng.standard_normal(weight.shape) + (0.7 if "gamma" in weight.name else 0)
        )


def compute(model: tf.Module, images: np.ndarray) -> dict[str, np.ndarray]:
    """The outputs of a model; of one without a classifier also the stacked hidden states and
    attentions.
    """
    if model.config.model_type == "clip":
        pixels = tf.constant(images.transpose(0, 3, 1, 2))
        return {"image_embeds": model.get_image_features(pixel_values=pixels).numpy()}
    options = {}
    if model.config.model_type == "vit_mae":
        # Noise decides which patches are masked, and in which order the others are: here none are
        # masked, and the order stays.
        patches = (IMAGE_SIZE // model.config.patch_size) ** 2
        options["noise"] = np.tile(np.arange(patches, dtype="float32"), (len(images), 1))
    if hasattr(model, "decoder"):
        model = model.vit  # what the decoder paints is not compared
    found = model(
        pixel_values=tf.constant(images.transpose(0, 3, 1, 2)),
        output_attentions=True,
        output_hidden_states=True,
        training=False,
        **options,
    )
    arrays = {name: found[name].numpy() for name in OUTPUTS if found.get(name) is not None}
    if "logits" not in arrays:
        for name in ("hidden_states", "attentions"):
            arrays[name] = np.stack([array.numpy() for array in found[name]])
    return arrays


def main() -> None:
    processor = transformers.ViTImageProcessor(size={"height": IMAGE_SIZE, "width": IMAGE_SIZE})
    photo = Image.fromarray(make_photo())
    outputs = {"processor/pixel_values": processor(photo, return_tensors="np")["pixel_values"]}
    for name, (make, configuration, options) in MODELS.items():
        model = make(configuration)
        model.build_in_name_scope()  # as `from_pretrained` does: its name begins the names of weights
        randomize(model)
        shutil.rmtree(FOLDER / name, ignore_errors=True)
        model.save_pretrained(FOLDER / name, **options)
        model = make.from_pretrained(FOLDER / name)
        for key, array in compute(model, make_images(IMAGE_SIZE, IMAGE_SIZE)).items():
            outputs[f"{name}/{key}"] = array
        if name == "vit":
            larger = tf.constant(make_images(48, 80).transpose(0, 3, 1, 2))
            found = model(pixel_values=larger, interpolate_pos_encoding=True)
            outputs["vit/larger_last_hidden_state"] = found.last_hidden_state.numpy()
    np.savez_compressed(FOLDER / "outputs.npz", **outputs)


if __name__ == "__main__":
    main()
