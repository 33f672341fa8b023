"""Live figures: moved by hand, and their numbers are those of the package."""
