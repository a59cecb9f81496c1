"""The packages that ours is measured against: each is run in a process of its own, and may be
absent.

cells.py            what is measured: a model, a size, a batch, a precision, a task
on_keras.py         ours, KerasHub and vit-keras
on_torch.py         timm, eager and compiled, and Hugging Face
on_flax.py          a ViT in Flax, as vit_jax has it
memory.py           the most memory that was in use
racing.py           several processes, in turns
worker.py           a process: steps of one cell
startup_worker.py   a process: from its start to the first training step
runtime_worker.py   a process: calls of an exported file
scaling_worker.py   a process: one worker of several, or simulated devices
timm_input.py       a process: timm's input pipeline
"""
