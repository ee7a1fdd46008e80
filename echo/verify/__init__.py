"""Compares a planned graph with the original one: results, random numbers and storage."""
