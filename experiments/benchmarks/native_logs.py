"""Holds back TensorFlow's native log lines: each script imports this first. TF_CPP_MIN_LOG_LEVEL=0
shows them.

`command_line/native_logs.py` is the same for the other scripts: Python finds only what lies beside
a script. Processes that a benchmark starts inherit the level.
"""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # TensorFlow reads it once, while it is loaded

import keras_vit  # noqa: F401 - it loads Keras, and holds back what TensorFlow writes before it reads the level
