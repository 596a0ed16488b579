"""The server's decisions: round plans, estimates, aggregation, controllers."""
