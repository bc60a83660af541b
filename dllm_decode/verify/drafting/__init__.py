"""Ways to draft: a path, a tree, a block or a draw from logits; copies and recycled tokens."""
