"""Pure functions, one per equation: no files, no printing, no training loop."""
