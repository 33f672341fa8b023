"""Layers, caches, RoPE and MLA against whole modules of torch and transformers,
whose weights load as they are."""
