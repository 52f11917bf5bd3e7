"""What crosses a process boundary: message types and their framing. Nothing else is shared between processes."""
