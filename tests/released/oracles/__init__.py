"""The attention of all 161 families, as layer and as file, against its own
model of transformers; what loads, and what is refused."""
