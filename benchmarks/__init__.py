"""Speed and memory of decoding, side by side with a plain reference loop."""
