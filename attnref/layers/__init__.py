"""One layer per file; of the variants, only mha and mqa import another: gqa."""
