"""Tensors in, tensors out: what every variant shares."""
