"""Fine-tuning: nothing is done against forgetting."""

from perdure.methods.method import Method


class FineTune(Method):
    """Plain SGD on one task after another."""
