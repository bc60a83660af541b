"""Reports of results folders: tables, a page, replays, advice and comparisons."""
