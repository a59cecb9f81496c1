"""What TensorFlow computes in its own operations, where that takes less time or memory than
`keras.ops`.
"""
