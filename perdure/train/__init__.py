"""The loop: it knows the interface of a method and no method by name."""
