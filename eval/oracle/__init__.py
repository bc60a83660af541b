"""Oracles: models and tasks whose every conditional is known exactly."""
