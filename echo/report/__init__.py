"""Where the memory of a training step goes: profiles as data, JSON and text."""
