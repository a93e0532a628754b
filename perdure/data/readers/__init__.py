"""One module per file format in which image sets are distributed: a folder goes in, `ImageArrays` come out."""
