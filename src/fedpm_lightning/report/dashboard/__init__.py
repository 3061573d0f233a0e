"""The dashboard: runs as one HTML page that needs no network, written to a file or served while runs go on."""
