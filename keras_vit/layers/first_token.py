"""The first token by itself, for a classifier that reads no other.

Of what the last block gives, the class token needs one query and one row of the MLP. The rest is for patch tokens that
nobody reads: 7 % of the products of a ViT-B/16. So a layer declares here how the first token of its result is computed
alone, and who reads only that token asks here for it. All tokens stay in the graph for whoever reads them; if nobody
does, TensorFlow drops them. That is in its graphs of training and of `predict`; elsewhere the first is taken from all.
(So a gradient of the classes to the last block's tokens is one to ask for with `training=False`.)
"""

from collections.abc import Callable

import keras

if keras.backend.backend() == "tensorflow":
    from keras_vit.layers.tensorflow_inference import predicts
    from keras_vit.layers.tensorflow_training import is_in_graph


def declare(tokens, compute: Callable, training: bool | None) -> None:
    """Lets `first_token(tokens)` be compute(), (B, 1, D), where that saves something."""
    if keras.backend.backend() == "tensorflow" and is_in_graph(tokens) and (training or predicts()):
        tokens._compute_first_token = compute


def pass_on(tokens, result, compute: Callable, training: bool | None) -> None:
    """Declares `result`, each token of which is computed from that of `tokens` alone, where `tokens` are declared."""
    if hasattr(tokens, "_compute_first_token"):
        declare(result, lambda: compute(first_token(tokens)), training)


def first_token(tokens):
    """(B, N, D) to (B, 1, D)."""
    return tokens._compute_first_token() if hasattr(tokens, "_compute_first_token") else tokens[:, :1]
