"""The data that users give and get: options, plans, the key that a plan is made for, and plans as text."""
