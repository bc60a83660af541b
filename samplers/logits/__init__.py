"""The arithmetic on logits: statistics, draws, bias, and a kernel for them."""
