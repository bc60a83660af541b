"""The command line; other packages register commands by entry points."""
