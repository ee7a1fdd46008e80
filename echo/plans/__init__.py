"""What users ask for and what they keep: options, plans, the key that a plan is made for, and plans as text."""
