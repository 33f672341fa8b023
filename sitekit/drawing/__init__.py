"""Drawings: heat maps, heads and data flows, plots; and strips of frames."""
