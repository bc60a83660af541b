"""Metrics: what speed and quality mean, how certain they are, and their summary."""
