"""What a layer keeps of the tokens so far."""
