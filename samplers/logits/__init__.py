"""The arithmetic on logits: statistics, draws, and a kernel for them."""
