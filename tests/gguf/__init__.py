"""Headers read in Python, against ggml's own reader."""
