"""The network: one transformer that every family configures, and its operations."""
