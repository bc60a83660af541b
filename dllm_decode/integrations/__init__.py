"""Samplers inside other engines."""
