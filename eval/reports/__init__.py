"""Reports: tables, pictures, replays, and the live view of a decode."""
