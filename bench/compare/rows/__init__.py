"""The rows of the table. Each module has IDS and measure(context), which returns the rows it could and could not
measure; a row that nobody wants (context.wants) is left out."""
