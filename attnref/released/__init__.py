"""A released model from its config.json: record, layer, file, known shapes."""
