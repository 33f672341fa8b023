"""Predicted bytes and FLOPs are those that caches hold and that torch
counts."""
