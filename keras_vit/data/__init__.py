"""Data: sources of labelled images, transforms, and batches.

`sources` reads examples, `transforms` and `randaugment` change an image, `pipeline` makes batches,
`fractals` draws an endless labelled pre-training set, and `duplicates` finds training images that
are also in the test set.
"""

from keras_vit.data import duplicates, fractals, pipeline, randaugment, sources, transforms

__all__ = ["duplicates", "fractals", "pipeline", "randaugment", "sources", "transforms"]
