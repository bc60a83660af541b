"""CUDA graphs: capture and replay, padding to few sizes, buffers that stay in place.

All of it is reached through `GraphRunner`.
"""
