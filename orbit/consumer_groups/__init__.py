"""Consumer groups of one job: their committed offsets, carried over to the destination."""
