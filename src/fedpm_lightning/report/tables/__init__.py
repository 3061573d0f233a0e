"""`fedpm compare`: runs as rows and columns of a table, for the terminal, Markdown, LaTeX and CSV."""
