"""The names of OpenCLIP and of OpenAI's CLIP for the arrays of an image tower.

In the table, `{}` is the number of a block. The projection is stored as (in, out), unlike dense
layers.

Source: open_clip 3.3.0 `transformer.py`; openai/CLIP `clip/model.py`.
"""

from keras_vit.weights.renaming import Rows, Rule, make_rules
from keras_vit.weights.torch_modules import ATTENTION, BLOCK, LEAVES, MLP, POSITIONS, QKV

_LAYER = "transformer.resblocks.{}"
_ROWS: Rows = (
    ("class_embedding", "cls", "vector"),
    ("positional_embedding", POSITIONS, "table"),
    ("conv1", "embedding", "conv"),
    ("ln_pre", "Transformer/norm_before_blocks", "norm"),
    (f"{_LAYER}.ln_1", f"{BLOCK}/LayerNorm_0", "norm"),
    (f"{_LAYER}.attn.in_proj", ATTENTION, "in_proj", QKV),
    (f"{_LAYER}.attn.out_proj", f"{ATTENTION}/out", "out"),
    (f"{_LAYER}.ln_2", f"{BLOCK}/LayerNorm_1", "norm"),
    (f"{_LAYER}.mlp.c_fc", f"{MLP}/Dense_0", "dense"),
    (f"{_LAYER}.mlp.c_proj", f"{MLP}/Dense_1", "dense"),
    ("ln_post", "Transformer/encoder_norm", "norm"),
    ("proj", "head", "projection"),
)


def make_openclip_rules() -> list[Rule]:
    """Returns the rules for reading and writing."""
    return make_rules(_ROWS, LEAVES)
