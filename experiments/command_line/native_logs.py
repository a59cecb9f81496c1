"""Suppresses TensorFlow's native log lines; each script imports this first.

TF_CPP_MIN_LOG_LEVEL=0 shows them. The scripts in `benchmarks/` need their own copy,
`benchmarks/native_logs.py`, as Python searches only the folder of the script.
"""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # TensorFlow reads it once, while it is loaded

import keras_vit  # noqa: F401 - hides the lines that TensorFlow prints before it reads the level
