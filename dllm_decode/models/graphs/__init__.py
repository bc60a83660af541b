"""CUDA graphs: capture and replay, padding to few sizes, buffers that stay in place.

All of it is reached through `GraphRunner`. Without this folder, models on CUDA decode the same
tokens, each forward launched anew.
"""
