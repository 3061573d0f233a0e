"""How samples are spread over clients."""
