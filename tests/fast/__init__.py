"""Each module of `perdure.fast` against a slow, obvious twin."""
