"""The loop: decoder, rounds, rows that join and leave, forwards, views, and what is settled."""
