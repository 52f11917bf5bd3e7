"""GGUF files without llama.cpp: headers as values, and which weights a CPU copies."""
