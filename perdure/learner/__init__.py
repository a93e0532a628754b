"""A deployed classifier that learns new tasks without old images, and can say that nothing broke."""
