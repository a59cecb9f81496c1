"""Every family in timm, Transformers and OpenCLIP and here: random weights, written by them, loaded
here, and back. Skipped where these packages are absent.
"""

import json

import family_peers as peers
import keras
import numpy as np
import pytest
from torch_peers import import_timm

import keras_vit

pytestmark = [
    pytest.mark.filterwarnings("ignore"),  # torch and timm warn about their own parts
    pytest.mark.once,
]

TOLERANCE = 1e-4
NATIVE = (peers.SIZE, peers.SIZE)
SIZES = [(48, 48), (24, 24), (32, 56)]  # larger, smaller, rectangular


@pytest.fixture(scope="module", autouse=True)
def timm():
    return import_timm()


def _save_timm(model, path, prefix=""):
    from safetensors.torch import save_file

    path = path / "model.safetensors"
    save_file({prefix + name: x.contiguous() for name, x in model.state_dict().items()}, path)
    return path


def _save(package, model, folder):
    """Writes the weights of a model as its package does."""
    if package == "transformers":
        model.save_pretrained(folder)
        return folder
    return _save_timm(model, folder, "visual." if package == "open_clip" else "")


def _resize(package, case, model, size, sizes=peers.SMALL):
    """Returns the model at another image size, with its positions resized by its package."""
    if package == "transformers" or size == (sizes.image_size,) * 2:
        return model
    other = case.make(size, sizes)
    state = dict(model.state_dict())
    if package == "timm" and "pos_embed" in state:
        from timm.models.vision_transformer import checkpoint_filter_fn

        state = checkpoint_filter_fn(state, other)
    elif package == "open_clip":
        from types import SimpleNamespace

        from open_clip.model import resize_pos_embed

        state = {f"visual.{name}": x for name, x in state.items()}
        resize_pos_embed(state, SimpleNamespace(visual=other), antialias=True)
        state = {name.removeprefix("visual."): x for name, x in state.items()}
    other.load_state_dict(state, strict=True)
    return other.eval()


CASES = [
    pytest.param(package, case, id=f"{package}: {name}")
    for package, cases in (
        ("timm", peers.TIMM_CASES),
        ("transformers", peers.TRANSFORMERS_CASES),
        ("open_clip", peers.OPENCLIP_CASES),
    )
    for name, case in cases.items()
]


def _make(package, case, sizes=peers.SMALL):
    import torch

    pytest.importorskip(package)
    torch.manual_seed(0)
    return peers.randomize(case.make((sizes.image_size,) * 2, sizes), width=sizes.width)


def _answer(case, model, images):
    import torch

    with torch.no_grad():
        found = case.answer(model, peers.pixels_for(case, images))
    return [None if each is None else each.numpy() for each in found]


def _load(case, path, size, logits=None, sizes=peers.SMALL, **options):
    build = keras_vit.application(case.variant(sizes))
    options = {"weights": path, "input_shape": (*size, 3), "interpolation": case.rule, **options}
    if logits is None:
        return build(include_top=False, **options)
    options |= case.options
    return build(classes=logits.shape[-1], classifier_activation=None, **options)


def _error(model, images, expected):
    received = keras.ops.convert_to_numpy(model(images))
    assert received.shape == expected.shape
    return np.abs(received - expected).max()


@pytest.mark.parametrize(("package", "case"), CASES)
def test_tokens_vector_and_logits_are_those_of_the_peer(package, case, tmp_path):
    model = _make(package, case)
    path = _save(package, model, tmp_path)
    for size in (NATIVE, *SIZES):
        images = peers.images_of(size)
        tokens, vector, logits = _answer(case, _resize(package, case, model, size), images)
        assert _error(_load(case, path, size), images, tokens) < TOLERANCE
        pooled = _load(case, path, size, pooling=case.pooling, **(case.options or {}))
        assert _error(pooled, images, vector) < TOLERANCE
        if case.options is not None:
            assert _error(_load(case, path, size, logits), images, logits) < TOLERANCE


def _read(path):
    from safetensors.numpy import load_file

    return load_file(path / "model.safetensors" if path.is_dir() else path)


LAYOUTS = {"timm": "timm", "transformers": "huggingface", "open_clip": "openclip"}
# Arrays that our models do not have: text towers, decoders, poolers of models without a head.
LEFT_OUT = ("text_", "logit_", "pooler.", "decoder.", "vision_model.text_")


@pytest.mark.parametrize(("package", "case"), CASES)
def test_written_back_it_has_the_same_bits_and_the_peer_loads_it(package, case, tmp_path):
    import torch

    model = _make(package, case)
    with torch.no_grad():
        for name, x in model.named_parameters():
            if name.endswith("mask_token"):  # written as zeros
                x.zero_()
    path = _save(package, model, tmp_path)
    logits = _answer(case, model, peers.images_of(NATIVE))[2]
    pooling = {} if logits is not None or case.pooling != "map" else {"pooling": "map"}
    ours = _load(case, path, NATIVE, logits, **pooling)
    target = tmp_path / ("folder" if package == "transformers" else "again.safetensors")
    keras_vit.save_checkpoint(ours, target, layout=LAYOUTS[package])
    before, after = _read(path), _read(target)
    if package != "transformers":
        other = case.make(NATIVE)
        prefix = "visual." if package == "open_clip" else ""
        state = {name.removeprefix(prefix): torch.from_numpy(x) for name, x in after.items()}
        other.load_state_dict(state, strict=True)
    else:
        _check_transformers_load(target, case, ours, logits is not None)
        before = {_without_prefix(name): x for name, x in before.items()}
        after = {_without_prefix(name): x for name, x in after.items()}
        before = {n: x for n, x in before.items() if not n.startswith(LEFT_OUT)}
        if case.row == "SigLIP_B16" and logits is not None:
            return  # written as the class of I-JEPA, which computes the same
    assert before.keys() == after.keys()
    for name, x in before.items():
        np.testing.assert_array_equal(after[name], x, err_msg=name, strict=True)


def _without_prefix(name):
    for prefix in ("vision_model.", "vit."):
        name = name.removeprefix(prefix)
    return name


def _check_transformers_load(folder, case, ours, has_head):
    """The class that config.json names loads every array, and computes what our model computes."""
    import torch
    import transformers

    config = json.loads((folder / "config.json").read_text())
    cls = getattr(transformers, config["architectures"][0])
    has_pooler = any("pooler" in name for name in _read(folder))
    may_have = ("ViTModel", "DeiTModel", "IJepaModel")
    options = {} if has_pooler or cls.__name__ not in may_have else {"add_pooling_layer": False}
    model, report = cls.from_pretrained(folder, output_loading_info=True, **options)
    assert not any(report.values()), report
    images = peers.images_of(NATIVE)
    with torch.no_grad():
        found = model.eval()(peers.pixels_for(case, images))
    expected = found.logits if "logits" in found else found.get("image_embeds")
    if has_head:
        assert _error(ours, images, expected.numpy()) < TOLERANCE
    auto = transformers.AutoModel.from_pretrained(folder)
    assert type(auto).__name__ in (cls.__name__, cls.__name__.partition("For")[0] + "Model") or (
        "CLIP" in cls.__name__
    )


@pytest.mark.parametrize("kind", ["bin", "pth", "sharded"])
def test_other_kinds_of_file_hold_the_same(kind, tmp_path):
    import torch

    case = peers.TRANSFORMERS_CASES["DINOv2 reg4"]
    model = _make("transformers", case)
    folder = tmp_path / "folder"
    model.save_pretrained(folder, **({"max_shard_size": "20KB"} if kind == "sharded" else {}))
    if kind == "sharded":
        assert len(list(folder.glob("*.safetensors"))) > 2
    else:
        (folder / "model.safetensors").unlink()
        name = "pytorch_model.bin" if kind == "bin" else "model.pth"
        torch.save(model.state_dict(), folder / name)
    images = peers.images_of(NATIVE)
    path = folder / "model.pth" if kind == "pth" else folder
    assert _error(_load(case, path, NATIVE), images, _answer(case, model, images)[0]) < TOLERANCE
