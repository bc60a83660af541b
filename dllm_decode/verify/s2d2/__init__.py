"""Self-speculation of block-causal models: a block's draft is verified from left to right."""
