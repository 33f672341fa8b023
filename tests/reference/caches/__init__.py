"""Every cache gives what no cache gives; it fills, rolls back, is copied and
reordered, and refuses the rest."""
