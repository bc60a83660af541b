"""Metrics: what speed and quality mean, and how certain they are."""
