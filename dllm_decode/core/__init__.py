"""What every other package may use: canvas, rows, columns, options of a request, results."""
