"""Tests of the wrapper over llama.cpp, with real files."""
