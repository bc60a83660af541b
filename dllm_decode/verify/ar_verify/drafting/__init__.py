"""Ways to draft: search for a path, or draw one."""
