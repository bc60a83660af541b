"""Commands that train: a Learn2PD filter, and certainty-forcing distillation."""
