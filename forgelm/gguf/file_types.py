"""How a GGUF calls its quantization: llama.cpp's `llama_ftype`, the number in `general.file_type`."""

_NAMES = """
    F32 F16 Q4_0 Q4_1 . . . Q8_0 Q5_0 Q5_1 Q2_K Q3_K_S Q3_K_M Q3_K_L Q4_K_S Q4_K_M Q5_K_S Q5_K_M Q6_K IQ2_XXS IQ2_XS
    Q2_K_S IQ3_XS IQ3_XXS IQ1_S IQ4_NL IQ3_S IQ3_M IQ2_S IQ2_M IQ4_XS IQ1_M BF16 . . . TQ1_0 TQ2_0 MXFP4_MOE NVFP4
    Q1_0 Q2_0
"""
FILE_TYPES = {number: name for number, name in enumerate(_NAMES.split()) if name != "."}
"""Number → name, without those that were dropped."""
GUESSED = 1024
"""Bit of a file type that wasn't told but guessed."""


def quant_name(file_type: int) -> str:
    """The quantization's name, such as "Q4_K_M"; "" for a number that isn't known."""
    return FILE_TYPES.get(file_type & ~GUESSED, "")
