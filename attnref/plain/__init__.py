"""The plain form of each subject: one file, one screen, PyTorch alone.

Import from a file: from attnref.plain.gqa import GQA
"""
