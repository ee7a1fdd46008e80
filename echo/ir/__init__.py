"""Values: graphs, training graphs and schedules, and the facts about operators. Nothing here depends on MXNet."""
