"""One variant of attention per file; none imports another."""
