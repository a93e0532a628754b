"""Where tasks come from: readers of the original files, and the streams made of them."""
