"""Programs that a model wrote: who may run them, and within which walls."""
