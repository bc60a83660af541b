"""The mask predictors of this package: each runs one kind of network."""
