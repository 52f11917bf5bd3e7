"""The HTTP API on a real socket, in front of a real engine process that makes its tokens up."""
