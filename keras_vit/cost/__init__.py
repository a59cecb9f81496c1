"""What a model costs: parameters, multiply-adds, memory. Closed forms over a variant's numbers, no
framework.

What lives here: arithmetic on integers. What does not: the numbers themselves (`variants.py`), and
anything measured.

    rows.py         what is read from a row; the options of a model; its tokens
    parts.py        convolutions and attentions, what each costs by itself; which of them a model has
    counts.py       numbers that are trained
    compute.py      multiply-adds, FLOPs, exaFLOPs of a training run
    memory.py       weights and activations in bytes
"""

from keras_vit.cost.compute import flops, macs, pretraining_exaflops, training_exaflops
from keras_vit.cost.counts import parameters
from keras_vit.cost.memory import activation_bytes, weight_bytes
from keras_vit.cost.rows import tokens

__all__ = [
    "activation_bytes",
    "flops",
    "macs",
    "parameters",
    "pretraining_exaflops",
    "tokens",
    "training_exaflops",
    "weight_bytes",
]
