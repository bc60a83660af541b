"""CUDA graphs: capture and replay, padding to few shapes, buffers that stay in place."""
