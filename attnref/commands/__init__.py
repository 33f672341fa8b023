"""The commands of `attnref`, one per file."""
