"""Each layer against code that nobody here wrote, and what is its own."""
