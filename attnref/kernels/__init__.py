"""Triton kernels: one file a kernel, for a GPU. Needs `attnref[kernels]`.

Import from a file: from attnref.kernels.flash import flash
"""
