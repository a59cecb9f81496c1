"""Implementations in TensorFlow's operations that take less time or memory than `keras.ops`."""
