"""Tests of `forgelm.text` that need more than one file's worth of set-up."""
