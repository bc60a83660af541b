"""Model families: from a checkpoint's config and tensor names to the network."""
