"""The record of a training run in windows of steps: rows, their files and sums, and meters of power and energy."""
