"""Published weights: their catalog, download and formats, and the conversion to our models."""
