"""Tests of the engine with llama.cpp behind it: scheduler and backend together, against llama.cpp's own output."""
