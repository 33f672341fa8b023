"""Softmax, attention functions, masks, RoPE and biases: equal to torch, to each
other, and right at their edges."""
