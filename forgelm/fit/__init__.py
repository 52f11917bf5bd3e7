"""Whether a model fits: what it takes of GPU and RAM, against what there is, and what to give up when it doesn't.

Arithmetic on a model's shape (`shapes`; from the file's `header`, or `published`), on the profile's sizes (`need`,
`compute`) and on the machine's memory (`budget`); `ladder` gives up settings until the sum fits. Nothing here loads a
model, not even llama.cpp's dry run: that allocates recurrent states for real and, on a GPU, a CUDA context in this
process.
"""
