"""Pages and files of released models, and Python as JavaScript."""
