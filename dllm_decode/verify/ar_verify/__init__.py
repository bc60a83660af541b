"""Verification of drafts by an autoregressive model."""
