"""The algorithms after the policies: hill climbing, ruin and recreate, minimum cuts, bounds, integer programs."""
