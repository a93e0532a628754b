"""Tables and figures, read from records; needs no torch."""
