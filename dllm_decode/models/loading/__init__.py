"""Loading and saving: weights, placement on devices, quantisation, export."""
