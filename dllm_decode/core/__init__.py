"""Canvas, rows, columns, requests and results: modules that every other package may use."""
