"""The adapter for the Language Model Evaluation Harness."""
