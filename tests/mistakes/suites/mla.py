"""Of modules whose mistakes stand on one page."""

SUITES = {}
