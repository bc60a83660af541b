"""Answers that must be in a set of texts: the tokens that rows propose are those of a path."""
