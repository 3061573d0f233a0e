"""What is run for the pages of results, and how those are built."""
