"""Networks: a backbone that all tasks share, and one head per task."""
