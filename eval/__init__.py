"""Tasks, metrics and reports that measure how well and how fast a decoder fills answers."""
