"""What a training run takes, window by window: rows, their files and sums, and the meters of power and energy."""
