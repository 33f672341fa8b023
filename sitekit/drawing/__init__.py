"""Drawings: heat map, wiring, bars, plots, strips, data flows."""
