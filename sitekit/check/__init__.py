"""Pages of the catalogue of mistakes and of exercises."""
