"""The arithmetic on logits: statistics, draws, and noise."""
