"""The commands of `python -m attnref`, one per file."""
