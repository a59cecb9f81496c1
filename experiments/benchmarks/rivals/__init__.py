"""The packages that ours is compared with. Each runs in its own process and may be missing.

cells.py            a cell of the benchmark: model, image size, batch size, precision, task
on_keras.py         models of keras_vit, KerasHub and vit-keras
on_torch.py         models of timm, eager and compiled, and of Hugging Face
on_flax.py          a ViT in Flax, modelled on vit_jax
memory.py           peak and available memory
racing.py           alternating measurements of several processes
worker.py           a process that runs the steps of one cell
startup_worker.py   a process that measures its startup, up to the first training step
runtime_worker.py   a process that calls an exported file
scaling_worker.py   a process that trains as one of several workers, or on simulated devices
timm_input.py       a process that runs timm's input pipeline
"""
