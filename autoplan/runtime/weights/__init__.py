"""Weights into a rank's parts and out again: safetensors files, state dicts, start values."""
