"""What `python -m attnref` can do, one command per file."""
