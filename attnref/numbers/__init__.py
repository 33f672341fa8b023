"""Shapes of released models, bytes of their caches, costs of layers."""
