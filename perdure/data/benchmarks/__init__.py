"""The benchmarks: each module makes a stream of tasks."""
