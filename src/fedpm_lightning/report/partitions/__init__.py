"""Reports of a partition: heterogeneity measures, pictures, and a table in the terminal."""
