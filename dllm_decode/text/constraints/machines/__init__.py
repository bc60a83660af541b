"""Deterministic automata as numpy tables: sets of texts, over characters and over bytes.

In all tables a row is a state, state 0 is the first one, and -1 means that no text continues.
"""
