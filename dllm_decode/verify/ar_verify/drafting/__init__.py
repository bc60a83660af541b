"""Ways to draft: a path, a tree or a draw from logits; copies of text; likely tokens of before."""
