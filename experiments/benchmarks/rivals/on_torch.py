"""Models in PyTorch: timm's, eager and compiled, and Hugging Face's."""

import contextlib
import time
from collections.abc import Callable

import torch

from rivals.cells import PATCH_SIZE, Absent, Cell

NUM_CLASSES = 1000
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def make_step(rival: str, cell: Cell) -> Callable[[], object]:
    """Returns a function that computes one batch and waits until it is finished.

    Raises:
        Absent: If the rival lacks the model or the option to save memory.
    """
    torch.manual_seed(0)
    model = (_build_hugging_face if rival == "hugging-face" else build_timm)(cell).to(DEVICE)
    if cell.saving == "query_chunk" or (cell.saving and rival == "hugging-face"):
        raise Absent("it has no such option")
    if cell.saving == "remat":
        model.set_grad_checkpointing()
    images = torch.rand(cell.batch_size, 3, cell.image_size, cell.image_size, device=DEVICE) * 2 - 1
    if not cell.trains:
        model = model.eval()
        if cell.precision == "bfloat16":
            model, images = model.bfloat16(), images.bfloat16()
        forward = torch.compile(model) if rival == "timm compiled" else model
        return lambda: _synchronize(_infer(forward, images))
    labels = torch.randint(0, NUM_CLASSES, (cell.batch_size,), device=DEVICE)
    train = make_trainer(model, cell, compiled=rival == "timm compiled")
    return lambda: train(images, labels)


def build_timm(cell: Cell, checkpoint: str = "") -> torch.nn.Module:
    import timm

    options = {
        "img_size": cell.image_size,
        "num_classes": NUM_CLASSES,
        "checkpoint_path": checkpoint,
    }
    return timm.create_model(cell.shape.timm, pretrained=False, **options)


def make_trainer(
    model: torch.nn.Module, cell: Cell, *, compiled: bool = False
) -> Callable[[torch.Tensor, torch.Tensor], object]:
    """Returns a function that trains on one batch of images and labels, (B,)."""
    weights = model.train().parameters()
    if cell.task == "adamw":
        optimizer = torch.optim.AdamW(weights, 1e-3, weight_decay=0.1)
    else:
        optimizer = torch.optim.SGD(weights, 1e-3, momentum=0.9)
    forward = torch.compile(model) if compiled else model

    def train(images: torch.Tensor, labels: torch.Tensor) -> None:
        with (
            torch.autocast(DEVICE, torch.bfloat16)
            if cell.precision == "bfloat16"
            else contextlib.nullcontext()
        ):
            loss = torch.nn.functional.cross_entropy(_get_logits(forward(images)), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        _synchronize(loss)

    return train


def _infer(forward: Callable, images: torch.Tensor) -> torch.Tensor:
    with torch.inference_mode():
        return _get_logits(forward(images))


def _get_logits(outputs: object) -> torch.Tensor:
    """Returns the logits, which Hugging Face wraps in an object."""
    return getattr(outputs, "logits", outputs)


def _synchronize(result: torch.Tensor) -> torch.Tensor:
    if DEVICE == "cuda":
        torch.cuda.synchronize()
    return result


def _build_hugging_face(cell: Cell) -> torch.nn.Module:
    from transformers import ViTConfig, ViTForImageClassification

    if cell.shape.is_hybrid:
        raise Absent("its hybrid is deprecated")
    shape = cell.shape
    config = ViTConfig(
        hidden_size=shape.width,
        num_hidden_layers=shape.depth,
        num_attention_heads=shape.num_heads,
        intermediate_size=shape.mlp_dim,
        image_size=cell.image_size,
        patch_size=PATCH_SIZE,
        num_labels=NUM_CLASSES,
    )
    return ViTForImageClassification(config)


def time_product(precision: str, size: int) -> float:
    """Returns the seconds that a product of two square matrices takes."""
    matrix = torch.randn(size, size, device=DEVICE).to(getattr(torch, precision))
    seconds = []
    for _ in range(2):
        start = time.perf_counter()
        _synchronize(matrix @ matrix)
        seconds.append(time.perf_counter() - start)
    return min(seconds)
