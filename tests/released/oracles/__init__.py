"""The attention of all 159 families, as layer and as file, against its own
model of transformers; what loads, and what is refused."""
