"""The plain form of each subject: one file, one screen, PyTorch alone."""
