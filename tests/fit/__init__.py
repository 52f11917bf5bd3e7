"""Whether models fit: the arithmetic held to what llama.cpp allocates, and the ladder to its promises."""
