"""Profiles of the memory of a training step, as data, JSON, text and pictures."""
