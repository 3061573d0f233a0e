"""What crosses the network smaller than it is: compressed symmetric matrices, sketches, quantised vectors."""
