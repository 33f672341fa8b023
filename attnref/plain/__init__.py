"""The plain form of each subject: one file, one screen, only PyTorch.

Import from a file: from attnref.plain.gqa import GQA
"""
