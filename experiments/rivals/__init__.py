"""The packages that ours is measured against: each is run in a process of its own, and may be absent.

cells.py        what is measured: a model, a size, a batch, a precision, a task
on_keras.py     ours, KerasHub and vit-keras
on_torch.py     timm, eager and compiled, and Hugging Face
on_flax.py      a ViT in Flax, as vit_jax has it
memory.py       the most memory that was in use
worker.py       the process
racing.py       several of them, in turns
timm_input.py   timm's input pipeline
"""
