"""Applying plans to what users train: symbols, executors; measuring operators on the user's device."""
