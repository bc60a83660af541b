"""Studies: the fastest setting that keeps the accuracy, and how far caches are from exact."""
