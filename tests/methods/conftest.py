"""The real convex tasks with their optima, loaded once for all method tests."""

from __future__ import annotations

import pytest

from convex import minimiser, real_clients


@pytest.fixture(scope="session")
def a9a():
    """(80 clients, theta*), lambda 1e-3."""
    clients = real_clients("a9a")
    return clients, minimiser(clients)


@pytest.fixture(scope="session")
def w8a():
    """(142 clients, theta*), lambda 1e-3."""
    clients = real_clients("w8a")
    return clients, minimiser(clients)
