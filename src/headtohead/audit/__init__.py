"""Model, data and part checks that determine whether a score can be trusted."""
