"""Constants of layers in Keras's weights files, stored beside the variables.

`model.save_weights` writes only variables. But a position table of 16 rows may belong to a grid of
4 by 4 or of 2 by 8, and weights are trained for one form of GELU. Layers store such constants, and
`keras_vit.weights.keras_h5` reads them.
"""

import json
import zlib
from collections.abc import Mapping, MutableMapping
from typing import Any

import numpy as np

_NAME = "constants"


def record(store: MutableMapping[str, Any], constants: Mapping[str, Any]) -> None:
    """Adds the constants of a layer to the store of `save_own_variables`: a checksum, then JSON.

    Example:
        >>> store = {}
        >>> record(store, {"grid": (2, 8)})
        >>> store["constants"].tobytes()
        b'e170146c {"grid": [2, 8]}'
    """
    text = json.dumps(dict(constants), sort_keys=True).encode()
    store[_NAME] = np.frombuffer(b"%08x %s" % (zlib.crc32(text), text), np.uint8)


def record_block(
    store: MutableMapping[str, Any], gelu: str, norm_epsilon: float, num_heads: int
) -> None:
    """Adds the constants of an encoder block, under the names of the metadata of checkpoints.

    Example:
        >>> record_block(store := {}, "tanh", 1e-6, 3)
        >>> read(store)
        {'gelu': 'tanh', 'layer_norm_epsilon': 1e-06, 'num_heads': 3}
    """
    record(store, {"gelu": gelu, "layer_norm_epsilon": float(norm_epsilon), "num_heads": num_heads})


def check_block(
    store: Mapping[str, Any], name: str, gelu: str, norm_epsilon: float, num_heads: int
) -> None:
    """Checks that the variables in a store are those of an encoder block of this kind.

    Their shapes do not depend on these constants, which is all that Keras compares.

    Raises:
        ValueError: If the block computes something else than the one whose variables were stored.
    """
    ours = {"gelu": gelu, "layer_norm_epsilon": float(norm_epsilon), "num_heads": num_heads}
    theirs = {key: value for key, value in read(store).items() if key in ours}
    if different := [key for key, value in theirs.items() if value != ours[key]]:
        stated = ", ".join(f"{key} {theirs[key]!r}" for key in different)
        own = ", ".join(f"{key} {ours[key]!r}" for key in different)
        raise ValueError(
            f"The stored variables of the layer {name} were trained with {stated}, and this layer "
            f"has {own}: it would compute something else. Build it as it was, or pass the file as "
            "`weights` to the model instead."
        )


def read(store: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the constants in a store. Files of older versions have none.

    Example:
        >>> read({"0": np.zeros(3)})
        {}
    """
    if _NAME not in store:
        return {}
    return json.loads(np.asarray(store[_NAME]).tobytes().split(b" ", 1)[1])


def select_variables(store: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a store without its constants, for `load_own_variables`.

    Example:
        >>> list(select_variables({"0": np.zeros(3), "constants": np.zeros(9, "uint8")}))
        ['0']
    """
    return {name: store[name] for name in store.keys() if name != _NAME}  # noqa: SIM118, a store of Keras is not a dict
