"""Measurements of a trained method, through `forward` and `weights` alone."""
