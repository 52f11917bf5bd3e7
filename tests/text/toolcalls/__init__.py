"""Tests of forgelm.text.toolcalls."""
