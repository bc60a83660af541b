from .reports.comparison import compare, frame, results

__all__ = ["compare", "frame", "results"]
