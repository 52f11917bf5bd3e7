"""A thin typed layer over llama-cpp-python's low-level bindings, and their only importer.

Its job is to make llama.cpp's silent traps impossible to step into: positions are counted here, rollbacks that would
corrupt are refused, and parameters whose defaults are wrong for a server are set. It decides nothing about requests.
"""
