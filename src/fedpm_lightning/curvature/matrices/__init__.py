"""Preconditioners P = A + delta I in their forms: dense, low rank, diagonal, Kronecker; damping and solves."""
