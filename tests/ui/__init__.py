"""The page at `/`, driven in a real browser."""
