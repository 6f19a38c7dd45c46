"""The outside world, one module per thing. An edge translates; it decides nothing."""
