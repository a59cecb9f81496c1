"""The cost of a model: parameters, multiply-adds and memory, from closed forms.

It needs only the row of a model in `variants.py`, and no framework. Nothing is measured.

    rows.py         tokens of a model; checks of its options
    parts.py        convolutions and attentions of a model, and the cost of each
    counts.py       parameters
    compute.py      multiply-adds, FLOPs, exaFLOPs of a training run
    memory.py       weights and activations in bytes
"""

from keras_vit.cost.compute import flops, macs, pretraining_exaflops, training_exaflops
from keras_vit.cost.counts import parameters
from keras_vit.cost.memory import activation_bytes, weight_bytes
from keras_vit.cost.rows import native_size, tokens

__all__ = [
    "activation_bytes",
    "flops",
    "macs",
    "native_size",
    "parameters",
    "pretraining_exaflops",
    "tokens",
    "training_exaflops",
    "weight_bytes",
]
