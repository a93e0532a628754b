"""Measurements of a trained method, through `look` and `weights` alone."""
