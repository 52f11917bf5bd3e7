"""Tool calls in the formats that models were trained on: read from what they say, and enforced by grammars."""
