"""Runs: from a request to a record in plain files."""
