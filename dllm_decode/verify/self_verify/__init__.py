"""Self-verification: the model checks drafts of its own."""
