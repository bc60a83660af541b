from .reports.comparison import compare, records, results

__all__ = ["compare", "records", "results"]
