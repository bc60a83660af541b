"""Causal targets: autoregressive models that verify drafts."""
