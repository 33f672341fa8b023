"""What stands around a layer: blocks, decoders, weights from elsewhere."""
