"""Text on the API's side of the engine: messages, templates, detokenizing, stop strings.

Pure functions and small objects that know nothing of HTTP, sockets or llama.cpp.
"""
